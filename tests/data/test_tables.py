"""Reading tables: formats, detection, row numbers, hostile files, and fuzzing of every reader."""

from __future__ import annotations

import gzip
import io
import zipfile

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from fuzzing import fuzzed
from moose.data.batches import NO_TIME, Wanted
from moose.data.findings import Findings
from moose.data.schema import TextSettings
from moose.data.tables import find_files, open_table
from moose.data.typed_tables import read_arrays
from moose.errors import DataError, UserError
from plant_log import findings_of, loaded, rows, text_of, tree_with, write

SECOND = 1_000_000_000
XY = Wanted(("x", "y"))


def read(source, wanted=XY, **text):
    """Rows, numbers, times, episodes and findings of a whole table."""
    found = Findings()
    table = open_table(source, TextSettings(**text), found.add)
    batches = list(table.batches(wanted, found.add))
    numbers = [np.concatenate(parts) for parts in zip(*(b.numbers for b in batches), strict=True)]
    times = np.concatenate([b.times for b in batches]) if wanted.time else None
    episodes = (
        [name for b in batches for name in b.episodes.to_pylist()] if wanted.episode else None
    )
    row_numbers = np.concatenate([b.rows for b in batches]) if batches else np.zeros(0)
    by_code = {f.code: f for f in reversed(found.listed())}
    return row_numbers, numbers, times, episodes, by_code


def csv(tmp_path, text, name="log.csv"):
    return write(tmp_path, text, name)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("x,y\n1.5,2\n-3e2,4\n", {}),
        ("x;y\n1,5;2\n-3e2;4\n", {}),
        ("x;y\n1.5;2\n-3e2;4\n", {}),
        ("x\ty\n1.5\t2\n-3e2\t4\n", {}),
        ("x|y\n1.5|2\n-3e2|4\n", {}),
        ('"x";"y"\n"1,5";"2"\n"-3e2";"4"\n', {}),
        ("x;y\r\n1,5;2\r\n-3e2;4\r\n", {}),
        ("\ufeffx,y\n1.5,2\n-3e2,4\n", {}),
        ("x , y\n1.5,2\n-3e2,4", {}),
        ("x;y\n15;2\n-3e2;4\n", {"decimal": ","}),
        ("made by\nhand\nx,y\n1.5,2\n-3e2,4\n", {"skip": 2}),
    ],
)
def test_dialects_are_detected_or_given(tmp_path, text, settings):
    row_numbers, (x, y), _, _, found = read(csv(tmp_path, text), **settings)
    first = 15.0 if "15;2" in text else 1.5
    np.testing.assert_array_equal(x, [first, -300.0])
    np.testing.assert_array_equal(y, [2.0, 4.0])
    skip = settings.get("skip", 0)
    assert row_numbers.tolist() == [2 + skip, 3 + skip]
    assert set(found) <= {"format"}


@pytest.mark.parametrize(("right", "shown"), [(";", '";"'), ("\t", r'"\t"')])
def test_a_wrong_delimiter_is_one_error(tmp_path, right, shown):
    with pytest.raises(DataError) as caught:
        read(csv(tmp_path, f"x{right}y\n0{right}1\n1{right}2\n"), delimiter=",")
    assert "the header is one column" in str(caught.value)
    assert f"say csv.delimiter: {shown} in the task file" in str(caught.value)
    read(csv(tmp_path, "x\n1\n"), Wanted(("x",)), delimiter=",")  # one column is all there is


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings(tmp_path, encoding):
    text = "größe,y\n1,2\n3,4\n".encode(encoding)
    _, (x, _), _, _, found = read(csv(tmp_path, text), Wanted(("größe", "y")))
    np.testing.assert_array_equal(x, [1.0, 3.0])
    assert ("encoding" in found) == (encoding == "latin-1")


def test_compressed_files_and_folders(tmp_path):
    csv(tmp_path, gzip.compress(b"x,y\n1,2\n"), "b.csv.gz")
    csv(tmp_path, "x,y\n3,4\n", "a.csv")
    (tmp_path / "readme.md").write_text("not a table")
    files = find_files([tmp_path])
    assert [file.name for file in files] == ["a.csv", "b.csv.gz"]
    assert [read(file)[1][0].tolist() for file in files] == [[3.0], [1.0]]
    with pytest.raises(DataError, match="no such file"):
        find_files([tmp_path / "none.csv"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no table in this folder"):
        find_files([tmp_path / "empty"])
    with pytest.raises(DataError, match="no file to read"):
        find_files([])


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        ("2024-03-01 00:00:00", "2024-03-01 00:01:30", 90),
        ("2024-03-01T00:00:00", "2024-03-01T00:01:30.25", 90.25),
        ("2024-03-01T00:00:00Z", "2024-03-01T00:01:30Z", 90),
        ("2024-03-01T01:00:00+01:00", "2024-03-01T00:01:30+00:00", 90),
        ("01.03.2024 00:00:00", "01.03.2024 00:01:30", 90),
        ("2024/03/01 00:00:00", "2024/03/01 00:01:30", 90),
        ("01-Mar-2024 00:00:00", "01-Mar-2024 00:01:30", 90),
        ("100.5", "190.5", 90),
        ("1700000000.25", "1700000090.75", 90.5),
    ],
)
@pytest.mark.parametrize("is_slow", [False, True])
def test_times(tmp_path, first, second, seconds, is_slow):
    text = f"t,x,y\n{first},1,2\n{second},3,4\n" + "gibberish,5,6\n" * is_slow
    _, _, times, _, found = read(csv(tmp_path, text), Wanted(("x", "y"), "t"))
    assert times[1] - times[0] == pytest.approx(seconds * SECOND, abs=1000)
    if is_slow:
        assert times[2] == NO_TIME
        assert (found["bad-time"].row, found["bad-time"].value) == (4, "gibberish")


def test_a_time_format_may_be_given(tmp_path):
    text = "t,x,y\n03/01/2024 00:00,1,2\n03/01/2024 00:02,3,4\n"
    wanted = Wanted(("x", "y"), "t")
    _, _, times, _, _ = read(csv(tmp_path, text), wanted, time_format="%m/%d/%Y %H:%M")
    assert times[1] - times[0] == 120 * SECOND


def test_the_slow_way_reads_what_the_fast_way_reads(tmp_path, monkeypatch):
    """From the block on in which something is wrong; nothing twice, nothing left out."""
    table = rows()
    wanted = Wanted(("temperature", "pressure", "valve", "cost"), "time", "batch")
    plain = read(csv(tmp_path, table), wanted)
    for block in (1 << 10, 1 << 12, 1 << 22):
        monkeypatch.setattr("moose.data.text_tables._BLOCK_BYTES", block)
        spoiled = [list(row) for row in table]
        spoiled[300][2] = "bad"
        spoiled[500][3] = "worse"
        spoiled.insert(400, ["too", "short"])
        row_numbers, numbers, times, episodes, found = read(csv(tmp_path, spoiled), wanted)
        assert row_numbers.tolist() == [*range(2, 401), *range(402, 603)]
        expected = [np.array(values) for values in plain[1]]
        expected[1][299] = expected[2][499] = np.nan
        for ours, theirs in zip(numbers, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(times, plain[2])
        assert episodes == plain[3]
        assert (found["ragged-row"].row, found["ragged-row"].count) == (401, 1)
        assert (found["text"].row, found["text"].count) == (301, 1)


def test_the_same_log_in_every_format_is_the_same_data_set(tmp_path):
    table = rows()
    german = [[cell.replace(".", ",") for cell in row] for row in table]
    columns = {
        name: [row[i] if name in {"time", "batch"} else float(row[i]) for row in table[1:]]
        for i, name in enumerate(table[0])
    }
    frame = pa.table(columns)
    pq.write_table(frame, tmp_path / "log.parquet")
    numeric = {name: np.array(v) for name, v in columns.items()}
    numeric["time"] = np.arange(600) * 60.0
    np.savez_compressed(tmp_path / "log.npz", **numeric)
    sources = [
        write(tmp_path, table, "log.csv"),
        write(tmp_path, text_of(german, ";"), "german.csv"),
        write(tmp_path, gzip.compress(text_of(table, "\t").encode()), "log.tsv.gz"),
        tmp_path / "log.parquet",
        tmp_path / "log.npz",
        frame,
        frame.to_reader(),
        columns,
    ]
    prints = {loaded([source], tree_with()).dataset.fingerprint for source in sources}
    assert len(prints) == 1


def test_frames_of_other_libraries():
    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table({"x": [1, 2], "y": [0.5, None]}).__arrow_c_stream__(requested_schema)

    _, (x, y), _, _, _ = read(Stream())
    np.testing.assert_array_equal(x, [1.0, 2.0])
    np.testing.assert_array_equal(y, [0.5, np.nan])
    with pytest.raises(DataError, match="A list is not a table"):
        read([1, 2, 3])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        gzip.compress(b"x,y\n1,2\n" * 1000, mtime=0)[:-20],
        b"\x1f\x8b" + b"garbage" * 10,
        b"\x89HDF\r\n\x1a\n",
        b"PK\x03\x04 a workbook",
        b"PAR1 and then nothing",
    ],
)
def test_what_is_no_table_is_refused(tmp_path, content):
    path = csv(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(path) in caught.value.where
    assert caught.value.advice


# --- NPZ ---------------------------------------------------------------------------------------


def archive(tmp_path, entries):
    path = tmp_path / "log.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def array_bytes(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


class Trap:
    """Would leave a trace if it were unpickled."""

    def __reduce__(self):
        return (open, ("trap-was-sprung", "w"))


def test_pickled_arrays_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objects = np.array([Trap()], dtype=object)
    path = archive(tmp_path, {"x.npy": array_bytes(objects, allow_pickle=True)})
    with pytest.raises(DataError, match="pickled objects, which are never loaded"):
        read_arrays(path)
    assert not (tmp_path / "trap-was-sprung").exists()


def test_absurd_sizes_are_refused(tmp_path):
    stream = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (999_999_999_999,)}
    np.lib.format.write_array_header_1_0(stream, header)
    forged = stream.getvalue() + bytes(80)
    with pytest.raises(DataError, match="claims the shape"):
        read_arrays(archive(tmp_path, {"x.npy": forged}))
    with pytest.raises(DataError, match="not a sound archive"):
        read_arrays(archive(tmp_path, {"x.npy": b"nothing of the kind"}))


def test_columns_of_an_archive_have_one_length(tmp_path):
    np.savez(tmp_path / "log.npz", x=np.zeros(3), y=np.zeros(4))
    with pytest.raises(DataError, match="different lengths"):
        read(tmp_path / "log.npz")


# --- fuzzing -----------------------------------------------------------------------------------

CELLS = ["1", "-2.5", "3e9", "1,5", "NaN", "", "inf", "x", '"', '"a', "2024-03-01 00:00:00", "\x00"]
SEPARATORS = [",", ";", "\t", "\n", "\r\n", "\n\n", " ", "\r"]
TABLES = st.lists(st.sampled_from([*CELLS, *SEPARATORS, "x,y\n", "é", "time"]), max_size=40)


def survive(path, tree=None):
    """Check and load; only our own error may escape."""
    plain = {
        "name": "fuzz",
        "observations": {"x": None},
        "actions": {"y": {"low": -10, "high": 10}},
        "reward": {"formula": "-x / y"},
    }
    for action in (findings_of, loaded):
        try:
            action([path], tree or plain)
        except UserError as error:
            assert error.what  # noqa: PT017
            assert error.where  # noqa: PT017


@fuzzed
@given(TABLES.map("".join) | st.text(max_size=80), st.sampled_from(["utf-8", "latin-1", "utf-16"]))
def test_any_text_is_read_or_refused(tmp_path, text, encoding):
    survive(csv(tmp_path, ("x,y\n" + text).encode(encoding, "replace")))


@fuzzed
@given(
    st.binary(max_size=200), st.booleans(), st.sampled_from(["log.csv", "log.parquet", "log.npz"])
)
def test_any_bytes_are_read_or_refused(tmp_path, content, is_compressed, name):
    content = gzip.compress(content) if is_compressed else content
    survive(csv(tmp_path, content, name))


def binary_log(name):
    stream = io.BytesIO()
    x, y = np.arange(50.0), np.linspace(-1, 1, 50)
    if name.endswith("parquet"):
        pq.write_table(pa.table({"x": x, "y": y}), stream, compression="none")
    else:
        np.savez(stream, x=x, y=y)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["log.parquet", "log.npz"])
@fuzzed
@given(st.data())
def test_damaged_files_are_read_or_refused(tmp_path, name, data):
    content = bytearray(binary_log(name))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    survive(csv(tmp_path, bytes(content[:cut]), name))
