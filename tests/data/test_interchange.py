"""D4RL-style files and Minari: read without their packages, hostile files refused."""

from __future__ import annotations

import io

import h5py
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fuzzing import fuzzed
from moose.data.interchange import is_interchange, read_interchange, write_minari
from moose.errors import ConfigError, DataError, UserError
from moose.tasks.intake import load_plant
from moose.tasks.registry import task_of
from moose.tasks.task_file import check_task_file
from toys import make_toy_log, make_toy_task


def flat(count=12, *, ends=(4, 11), timeouts=(7,)):
    """Transitions of three episodes: one terminated, one cut by a time limit, one unfinished."""
    random = np.random.default_rng(0)
    arrays = {
        "observations": random.normal(size=(count, 3)).astype(np.float32),
        "actions": random.uniform(-1, 1, (count, 2)).astype(np.float32),
        "rewards": random.normal(size=count).astype(np.float32),
        "terminals": np.isin(np.arange(count), ends),
    }
    if timeouts is not None:
        arrays["timeouts"] = np.isin(np.arange(count), timeouts)
    return arrays


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path


@pytest.mark.parametrize("ending", ["hdf5", "npz"])
def test_flat_transitions_are_cut_where_episodes_end(tmp_path, ending):
    arrays, path = flat(), tmp_path / f"log.{ending}"
    write_hdf5(path, arrays) if ending == "hdf5" else np.savez(path, **arrays)
    dataset = read_interchange(path)
    assert dataset.lengths.tolist() == [5, 3, 4]
    assert dataset.terminated.tolist() == [True, False, True]
    assert dataset.truncated.tolist() == [False, True, False]
    assert not dataset.final_observed.any()
    np.testing.assert_array_equal(dataset.actions, arrays["actions"])
    np.testing.assert_array_equal(
        dataset.observations[dataset.observation_rows], arrays["observations"]
    )
    assert dataset.observation_names == ("observation_0", "observation_1", "observation_2")


def test_successors_are_used_where_there_are_any(tmp_path):
    arrays = flat(timeouts=None)
    following = np.concatenate([arrays["observations"][1:], np.zeros((1, 3), np.float32)])
    following[[4, 7]] += 1  # another state than the next row's: an episode ended here
    path = write_hdf5(tmp_path / "log.hdf5", arrays | {"next_observations": following})
    dataset = read_interchange(path)
    assert dataset.lengths.tolist() == [5, 3, 4]
    assert dataset.final_observed.all()
    np.testing.assert_array_equal(dataset.observations[dataset.observation_rows + 1], following)


def test_old_files_have_to_be_told_their_time_limit(tmp_path):
    path = write_hdf5(tmp_path / "log.hdf5", flat(timeouts=None))
    with pytest.raises(DataError, match="does not say where episodes end") as caught:
        read_interchange(path)
    assert "episode_steps" in caught.value.advice
    dataset = read_interchange(path, episode_steps=3)
    assert dataset.lengths.tolist() == [3, 2, 3, 3, 1]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"rewards": None}, "no array 'rewards'"),
        ({"actions": np.zeros((5, 2))}, "5 actions for 12 rewards"),
        ({"terminals": np.zeros(5)}, "12 flags are needed"),
        ({"observations": np.zeros((12, 4, 4, 3))}, "only tables of numbers|has shape"),
        ({"observations": np.full((12, 3), np.nan)}, "not a finite number"),
        ({"next_observations": np.zeros((3, 3))}, "'next_observations' has shape"),
    ],
)
def test_what_does_not_fit_together_is_told(tmp_path, changes, complaint):
    arrays = {k: v for k, v in (flat() | changes).items() if v is not None}
    path = write_hdf5(tmp_path / "log.hdf5", arrays)
    with pytest.raises(DataError, match=complaint) as caught:
        read_interchange(path)
    assert str(path) in caught.value.where


# --- hostile files -----------------------------------------------------------------------------


def external_storage(file, folder):
    (folder / "secret").write_bytes(bytes(96))
    del file["rewards"]
    file.create_dataset("rewards", (12,), "f8", external=[(str(folder / "secret"), 0, 96)])


def virtual_storage(file, folder):
    with h5py.File(folder / "other.hdf5", "w") as other:
        other["data"] = np.zeros(12)
    layout = h5py.VirtualLayout((12,), "f8")
    layout[:] = h5py.VirtualSource(folder / "other.hdf5", "data", (12,))
    del file["rewards"]
    file.create_virtual_dataset("rewards", layout)


def soft_link(file, folder):
    file["elsewhere"] = file["rewards"][()]
    del file["rewards"]
    file["rewards"] = h5py.SoftLink("/elsewhere")


def external_link(file, folder):
    with h5py.File(folder / "other.hdf5", "w") as other:
        other["data"] = np.zeros(12)
    del file["rewards"]
    file["rewards"] = h5py.ExternalLink(str(folder / "other.hdf5"), "data")


def absurd_size(file, folder):
    del file["observations"]
    file.create_dataset("observations", (1 << 40, 3), "f4", chunks=(1024, 3))


def object_array(file, folder):
    del file["actions"]
    file.create_dataset("actions", data=["os.system('true')"] * 12, dtype=h5py.string_dtype())


def structured(file, folder):
    del file["observations"]
    file.create_group("observations")["image"] = np.zeros((12, 3))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (external_storage, "keeps its data in another file"),
        (virtual_storage, "keeps its data in another file"),
        (soft_link, "is a link to somewhere else"),
        (external_link, "is a link to somewhere else"),
        (absurd_size, "claims 13194139533312 bytes, but stores 0"),
        (object_array, "not numbers"),
        (structured, "is a group, not an array"),
    ],
)
def test_hostile_files_are_refused(tmp_path, spoil, complaint):
    path = write_hdf5(tmp_path / "log.hdf5", flat())
    with h5py.File(path, "a") as file:
        spoil(file, tmp_path)
    with pytest.raises(DataError, match=complaint):
        read_interchange(path)


def test_a_link_to_an_episode_is_refused(tmp_path):
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        file["elsewhere/rewards"] = np.zeros(3)
        file["episode_0"] = h5py.SoftLink("/elsewhere")
    with pytest.raises(DataError, match="is a link"):
        read_interchange(tmp_path / "log.hdf5")


def test_zeros_that_are_well_packed_are_no_attack(tmp_path):
    arrays = flat(count=60_000, ends=(), timeouts=(29_999, 59_999))
    arrays["observations"] = np.zeros((60_000, 3), np.float32)
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression="gzip", shuffle=True)
    assert read_interchange(tmp_path / "log.hdf5").num_transitions == 60_000


# --- Minari ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log():
    return make_toy_log(make_toy_task(), episodes=3, steps=7)


def test_minari_folders_go_out_and_come_back(tmp_path, log):
    write_minari(log, tmp_path / "set", "toy/log-v0")
    assert is_interchange(tmp_path / "set")
    assert read_interchange(tmp_path / "set").fingerprint == log.fingerprint
    assert read_interchange(tmp_path / "set" / "data" / "main_data.hdf5").num_transitions == 21
    with pytest.raises(UserError, match="exists already"):
        write_minari(log, tmp_path / "set", "toy/log-v0")


def test_minari_itself_reads_what_we_write(tmp_path, log):
    import minari

    write_minari(log, tmp_path / "set", "toy/log-v0")
    dataset = minari.MinariDataset(tmp_path / "set" / "data")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 21)
    episode = dataset[1]
    np.testing.assert_array_equal(episode.observations, log.observations[8:16])
    np.testing.assert_array_equal(episode.actions, log.actions[7:14])


@pytest.mark.parametrize("kind", ["hdf5", "arrow"])
def test_we_read_what_minari_writes(tmp_path, kind):
    import gymnasium
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    random = np.random.default_rng(0)
    frames, actions = random.normal(size=(2, 6, 3)), random.normal(size=(2, 5, 2))
    box = [gymnasium.spaces.Box(-9, 9, (size,), np.float64) for size in (3, 2)]
    (tmp_path / "set" / "data").mkdir(parents=True)
    storage = MinariStorage.new(tmp_path / "set" / "data", *box, data_format=kind)
    storage.update_episodes(
        EpisodeBuffer(
            id=i,
            observations=frames[i],
            actions=actions[i],
            rewards=np.arange(5.0),
            terminations=np.array([False] * 4 + [i == 0]),
            truncations=np.array([False] * 4 + [i == 1]),
            infos={},
        )
        for i in range(2)
    )
    dataset = read_interchange(tmp_path / "set")
    np.testing.assert_allclose(dataset.observations, frames.reshape(-1, 3), rtol=1e-6)
    np.testing.assert_allclose(dataset.actions, actions.reshape(-1, 2), rtol=1e-6)
    assert dataset.terminated.tolist() == [True, False]
    assert dataset.truncated.tolist() == [False, True]


def test_an_episode_without_its_end_cannot_become_minari(tmp_path):
    log = make_toy_log(make_toy_task(), episodes=2, steps=4, unfinished=(1,))
    with pytest.raises(DataError, match="needs an observation after the last action") as caught:
        write_minari(log, tmp_path / "set", "toy/log-v0")
    assert caught.value.where == "episode 1"
    assert not (tmp_path / "set").exists()


def test_a_task_file_gives_names_to_foreign_data(tmp_path):
    path = write_hdf5(tmp_path / "log.hdf5", flat())
    tree = {
        "name": "hopper",
        "observations": {"height": None, "angle": None, "speed": None},
        "actions": {"hip": {"low": -1, "high": 1}, "knee": {"low": -1, "high": 1}},
        "reward": {"column": "rewards"},
    }
    dataset, _ = load_plant(check_task_file(tree), [path])
    assert dataset.observation_names == ("height", "angle", "speed")
    task_of(dataset.provenance).require(dataset)
    with pytest.raises(ConfigError, match="rewards of their own"):
        load_plant(check_task_file(tree | {"reward": {"formula": "height"}}), [path])


@fuzzed
@given(st.data())
def test_damaged_files_are_read_or_refused(tmp_path, data):
    content = bytearray(_sound_file())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.just(len(content)) | st.integers(0, len(content)))
    path = tmp_path / "log.hdf5"
    path.write_bytes(bytes(content[:cut]))
    try:
        read_interchange(path)
    except UserError as error:
        assert error.where  # noqa: PT017


def _sound_file(cache=[]):  # noqa: B006
    if not cache:
        stream = io.BytesIO()
        with h5py.File(stream, "w") as file:
            for name, values in flat().items():
                file[name] = values
        cache.append(stream.getvalue())
    return cache[0]
