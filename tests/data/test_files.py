"""A data set comes back bit for bit, or with an error that names the file."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moose import storage
from moose.data import files
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.data.files import load_dataset, save_dataset
from moose.errors import DataError, StorageError, UserError
from moose.storage import MANIFEST, read_json, remove_stale_temporaries, write_manifest

SOURCES = Path(files.__file__).parents[2]
TABLES = ("observations.parquet", "transitions.parquet", "episodes.parquet")
ARRAYS = (
    "observations",
    "actions",
    "rewards",
    "lengths",
    "terminated",
    "truncated",
    "final_observed",
)


def make_dataset(lengths: tuple[int, ...] = (30, 1, 20), seed: int = 0) -> Dataset:
    random = np.random.default_rng(seed)
    episodes = [
        Episode(
            random.normal(size=(length + (index != 1), 3)),
            random.normal(size=(length, 2)),
            random.normal(size=length),
            terminated=index == 0,
        )
        for index, length in enumerate(lengths)
    ]
    names = ["level", "flow rate [m³/h]", "a.b"]
    return Dataset.from_episodes(episodes, names, ["valve", "flow rate [m³/h]"], {"seed": seed})


def assert_same(one: Dataset, other: Dataset) -> None:
    for name in ARRAYS:
        first, second = getattr(one, name), getattr(other, name)
        assert first.dtype == second.dtype
        assert first.shape == second.shape
        assert first.tobytes() == second.tobytes(), name
    assert one.fingerprint == other.fingerprint
    assert one.observation_names == other.observation_names
    assert one.action_names == other.action_names
    assert one.provenance == other.provenance


def reseal(folder: Path, **changes: Any) -> None:
    """Make the manifest fit its altered folder, as somebody who means ill would."""
    manifest = read_json(folder / MANIFEST)
    own = {"format", "schema_version", "files", "manifest_sha256"}
    content = {key: value for key, value in manifest.items() if key not in own} | changes
    write_manifest(folder, "moose-dataset", 1, content)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "dataset"
    save_dataset(make_dataset(), path)
    return path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "dataset"))


# There and back.

NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable() and name.strip())


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    observation_names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    action_names = draw(
        st.lists(NAMES.filter(lambda name: name != "reward"), min_size=1, max_size=3, unique=True)
    )
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)

    def array(*shape: int) -> np.ndarray:
        return draw(hnp.arrays(np.float32, shape, elements=numbers))

    episodes = []
    for length in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)):
        rows = length + draw(st.booleans())
        episodes.append(
            Episode(
                array(rows, len(observation_names)),
                array(length, len(action_names)),
                array(length),
                draw(st.booleans()),
                draw(st.booleans()),
            )
        )
    provenance = draw(st.dictionaries(st.text(), st.none() | st.floats(-1e9, 1e9) | st.text()))
    return Dataset.from_episodes(episodes, observation_names, action_names, provenance)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(dataset=datasets())
def test_a_data_set_comes_back_bit_for_bit(tmp_path: Path, dataset: Dataset) -> None:
    save_dataset(dataset, tmp_path / "dataset", overwrite=True)
    assert_same(load_dataset(tmp_path / "dataset"), dataset)


def test_the_same_data_give_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    save_dataset(make_dataset(), tmp_path / "dataset")
    assert sorted(os.listdir(saved)) == sorted([MANIFEST, *TABLES])
    for name in os.listdir(saved):
        assert (saved / name).read_bytes() == (tmp_path / "dataset" / name).read_bytes()


def test_other_tools_can_read_the_tables(saved: Path) -> None:
    dataset = make_dataset()
    transitions = pq.read_table(saved / "transitions.parquet")
    assert transitions.column_names == ["valve", "flow rate [m³/h]", "reward"]
    np.testing.assert_array_equal(transitions["reward"], dataset.rewards)
    assert pq.read_table(saved / "episodes.parquet")["length"].to_pylist() == [30, 1, 20]


def test_tables_of_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_ROWS_AT_A_TIME", 7)
    save_dataset(make_dataset(), tmp_path / "dataset")
    assert pq.read_metadata(tmp_path / "dataset" / "transitions.parquet").num_row_groups == 8
    assert_same(load_dataset(tmp_path / "dataset"), make_dataset())


def test_saving_and_loading_take_well_under_a_second(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    episodes = [
        Episode(random.normal(size=(1001, 6)), random.normal(size=(1000, 3)), np.zeros(1000))
        for _ in range(100)
    ]
    dataset = Dataset.from_episodes(episodes, list("abcdef"), list("xyz"), {})
    start = time.perf_counter()
    save_dataset(dataset, tmp_path / "dataset")
    load_dataset(tmp_path / "dataset")
    assert time.perf_counter() - start < 2.0  # 0.05 s measured; room for a busy machine


# Damage.


@pytest.mark.parametrize("name", [*TABLES, MANIFEST])
def test_one_flipped_byte_is_always_noticed(folder: Path, name: str) -> None:
    file = folder / name
    whole = file.read_bytes()
    random = np.random.default_rng(0)
    positions = random.choice(len(whole), size=min(150, len(whole)), replace=False)
    for position in (0, len(whole) - 1, *positions):
        damaged = bytearray(whole)
        damaged[position] ^= int(random.integers(1, 256))
        file.write_bytes(damaged)
        with pytest.raises(UserError) as caught:
            load_dataset(folder)
        assert str(file) in str(caught.value)
    file.write_bytes(whole)
    load_dataset(folder)


@pytest.mark.parametrize("name", [*TABLES, MANIFEST])
def test_a_file_cut_short_is_always_noticed(folder: Path, name: str) -> None:
    file = folder / name
    whole = file.read_bytes()
    lengths = np.random.default_rng(1).integers(0, len(whole), size=40)
    for length in (0, len(whole) - 1, *lengths):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError) as caught:
            load_dataset(folder)
        assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", TABLES)
def test_damage_under_a_fitting_checksum_never_gives_other_data(folder: Path, name: str) -> None:
    # Now the manifest agrees with the damaged file: Parquet's own checksums, the checks on
    # columns and values and the fingerprint have to hold, and only our errors may escape.
    file = folder / name
    whole = file.read_bytes()
    random = np.random.default_rng(2)
    num_noticed = 0
    for position in random.choice(len(whole), size=150, replace=False):
        damaged = bytearray(whole)
        damaged[position] ^= int(random.integers(1, 256))
        file.write_bytes(damaged)
        reseal(folder)
        with contextlib.suppress(UserError):
            # Some bytes say nothing about the data, such as a statistic or a version.
            assert_same(load_dataset(folder), make_dataset())
            continue
        num_noticed += 1
    assert num_noticed > 20


def test_page_checksums_are_written(saved: Path) -> None:
    for name in TABLES:
        whole = (saved / name).read_bytes()
        damaged = bytearray(whole)
        column = pq.read_metadata(saved / name).row_group(0).column(0)
        damaged[column.data_page_offset + column.total_compressed_size - 1] ^= 1
        with pytest.raises(OSError, match="CRC checksum"):
            pq.read_table(pa.BufferReader(bytes(damaged)), page_checksum_verification=True)


@pytest.mark.parametrize("name", TABLES)
def test_a_missing_table_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(StorageError, match="missing") as caught:
        load_dataset(folder)
    assert str(folder / name) in str(caught.value)


def test_what_is_not_a_data_set(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        load_dataset(tmp_path / "none")
    with pytest.raises(DataError, match="not a dataset: it has no manifest"):
        load_dataset(tmp_path)
    with pytest.raises(StorageError, match="Not a directory"):
        load_dataset(folder / TABLES[0])
    (folder / MANIFEST).write_text('{"format": "moose-policy", "schema_version": 1}')
    with pytest.raises(DataError, match="says 'moose-policy'"):
        load_dataset(folder)
    (folder / MANIFEST).write_text("[]")
    with pytest.raises(DataError, match="not a dataset"):
        load_dataset(folder)


def test_a_newer_version_is_not_guessed_at(folder: Path) -> None:
    manifest = read_json(folder / MANIFEST)
    storage.write_json(folder / MANIFEST, manifest | {"schema_version": 2})
    with pytest.raises(
        StorageError, match="schema version 2; this program reads up to 1"
    ) as caught:
        load_dataset(folder)
    assert str(folder / MANIFEST) in str(caught.value)
    assert "newer version of moose" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "file"),
    [
        ({"counts": {"episodes": 3, "transitions": 50}}, "transitions.parquet"),
        ({"counts": {"episodes": 2, "transitions": 51}}, "episodes.parquet"),
        ({"counts": {"episodes": 3, "transitions": 2**31 - 9}}, "transitions.parquet"),
        ({"counts": {"episodes": 3, "transitions": 2**80}}, MANIFEST),
        ({"counts": {"episodes": -3, "transitions": 51}}, MANIFEST),
        ({"counts": {"episodes": True, "transitions": 51}}, MANIFEST),
        ({"counts": None}, MANIFEST),
        ({"observation_names": ["level", "flow"]}, "observations.parquet"),
        ({"observation_names": ["level", "level", "flow"]}, MANIFEST),
        ({"observation_names": []}, MANIFEST),
        ({"observation_names": "level"}, MANIFEST),
        ({"observation_names": [1, 2, 3]}, MANIFEST),
        ({"action_names": ["valve", "gate"]}, "transitions.parquet"),
        ({"action_names": ["valve", "reward"]}, MANIFEST),
        ({"fingerprint": "0"}, MANIFEST),
        ({"provenance": "x"}, "provenance"),
    ],
)
def test_a_manifest_that_does_not_fit(folder: Path, changes: dict[str, Any], file: str) -> None:
    reseal(folder, **changes)
    with pytest.raises(DataError) as caught:
        load_dataset(folder)
    assert str(folder) in caught.value.where
    assert file in caught.value.where


def test_tables_that_do_not_fit(folder: Path) -> None:
    file = folder / "transitions.parquet"
    table = pq.read_table(file)
    broken: dict[str, Callable[[], pa.Table]] = {
        "order of columns": lambda: table.select(["flow rate [m³/h]", "valve", "reward"]),
        "type": lambda: table.cast(
            pa.schema([(name, pa.float64()) for name in table.column_names])
        ),
        "missing values": lambda: pa.table(
            {name: pa.array([None, *[0.0] * 50], pa.float32()) for name in table.column_names}
        ),
        "rows": lambda: table.slice(1),
    }
    for make in broken.values():
        pq.write_table(make(), file)
        reseal(folder)
        with pytest.raises(DataError) as caught:
            load_dataset(folder)
        assert str(file) in str(caught.value)


def test_a_value_that_is_not_finite_is_named_with_its_folder(folder: Path) -> None:
    file = folder / "transitions.parquet"
    table = pq.read_table(file)
    reward = table["reward"].to_numpy().copy()
    reward[31] = np.nan
    columns = [table["valve"], table["flow rate [m³/h]"], pa.array(reward)]
    pq.write_table(pa.table(columns, schema=table.schema), file)
    reseal(folder)
    with pytest.raises(DataError) as caught:
        load_dataset(folder)
    assert f"{folder}: rewards of episode 2, row 0, column 'reward'" in str(caught.value)


def test_an_unlisted_or_foreign_table(folder: Path) -> None:
    (folder / "extra.parquet").write_bytes(b"")
    reseal(folder)
    with pytest.raises(DataError, match="three tables"):
        load_dataset(folder)


# Failures while writing.


@pytest.fixture
def old_and_new(tmp_path: Path) -> Iterator[tuple[Path, Dataset]]:
    """An old version in place; at the end it must still be there, and nothing else."""
    save_dataset(make_dataset(seed=1), tmp_path / "place" / "dataset")
    yield tmp_path / "place" / "dataset", make_dataset(seed=2)
    assert_same(load_dataset(tmp_path / "place" / "dataset"), make_dataset(seed=1))
    assert os.listdir(tmp_path / "place") == ["dataset"]


def test_an_existing_data_set_is_kept(old_and_new: tuple[Path, Dataset]) -> None:
    path, dataset = old_and_new
    with pytest.raises(StorageError, match="exists already"):
        save_dataset(dataset, path)


def test_a_parent_that_is_a_file(old_and_new: tuple[Path, Dataset]) -> None:
    path, dataset = old_and_new
    with pytest.raises(StorageError, match="a part of this path is a file"):
        save_dataset(dataset, path / MANIFEST / "dataset")


def test_no_permission(old_and_new: tuple[Path, Dataset]) -> None:
    path, dataset = old_and_new
    is_root = os.geteuid() == 0
    path.parent.chmod(0o555)
    if is_root:
        for folder in list(path.parents)[1:4]:  # let "nobody" see the place
            folder.chmod(folder.stat().st_mode | 0o011)
        os.seteuid(65534)
    try:
        with pytest.raises(StorageError, match="Permission denied") as caught:
            save_dataset(dataset, path, overwrite=True)
    finally:
        if is_root:
            os.seteuid(0)
        path.parent.chmod(0o755)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["dataset", "other"])
def test_ctrl_c_in_the_middle(
    old_and_new: tuple[Path, Dataset], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, dataset = old_and_new
    write_batch, calls = pq.ParquetWriter.write_batch, []

    def interrupted(self: pq.ParquetWriter, *arguments: Any) -> None:
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write_batch(self, *arguments)

    monkeypatch.setattr(pq.ParquetWriter, "write_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_dataset(dataset, path.with_name(name), overwrite=True)


SAVE = """
import os, resource, signal, sys
import numpy as np
import pyarrow.parquet as pq
from moose.data import files
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.errors import StorageError

random = np.random.default_rng(0)
steps = 20_000
episode = Episode(random.normal(size=(steps, 3)), random.normal(size=(steps, 2)), np.zeros(steps))
dataset = Dataset.from_episodes([episode], ["a", "b", "c"], ["x", "y"], {})
"""


def save_in_another_process(path: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SAVE + textwrap.dedent(code), str(path)],
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("limit", [0, 1000, 100_000])
@pytest.mark.parametrize("name", ["dataset", "other"])
def test_a_full_disk(old_and_new: tuple[Path, Dataset], limit: int, name: str) -> None:
    path, _ = old_and_new
    done = save_in_another_process(
        path.with_name(name),
        f"""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        try:
            files.save_dataset(dataset, sys.argv[1], overwrite=True)
        except StorageError as error:
            os.write(1, str(error).encode())  # a pipe has no size limit
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "File too large" in done.stdout
    assert str(path.with_name(name)) in done.stdout
    assert "free some space" in done.stdout


KILLS = {
    "first table": "pq.ParquetWriter.write_batch = die",
    "before the manifest": "files.write_manifest = die",
    "before the rename": "from moose import storage; storage._replace_folder = die",
}


@pytest.mark.parametrize("stage", KILLS)
def test_kill_9_in_the_middle(old_and_new: tuple[Path, Dataset], stage: str) -> None:
    path, _ = old_and_new
    done = save_in_another_process(
        path,
        f"""
        def die(*arguments, **names):
            os.kill(os.getpid(), signal.SIGKILL)
        {KILLS[stage]}
        files.save_dataset(dataset, sys.argv[1], overwrite=True)
        """,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert_same(load_dataset(path), make_dataset(seed=1))
    leftovers = [name for name in os.listdir(path.parent) if name != "dataset"]
    assert len(leftovers) == 1
    assert leftovers[0].startswith(".tmp-")
    remove_stale_temporaries(path.parent)


def test_kill_9_at_any_time(tmp_path: Path) -> None:
    # A process that saves over and over, killed whenever: what is there is always whole.
    path = tmp_path / "dataset"
    save_dataset(make_dataset(), path)
    for delay in (0.01, 0.033, 0.071):
        with subprocess.Popen(
            [
                sys.executable,
                "-c",
                SAVE + "print(flush=True)\n"
                "while True: files.save_dataset(dataset, sys.argv[1], overwrite=True)",
                str(path),
            ],
            env=os.environ | {"PYTHONPATH": str(SOURCES)},
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(delay)
            process.kill()
        assert load_dataset(path).num_transitions in (51, 20_000)
        assert all(name == "dataset" or name.startswith(".tmp-") for name in os.listdir(tmp_path))
    remove_stale_temporaries(tmp_path)
    assert os.listdir(tmp_path) == ["dataset"]
