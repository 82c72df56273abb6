"""How fast a log is read and checked, against pyarrow reading the same file in the same run.

    python benchmarks/intake.py --rows 10000000

Writes a sound log of twelve columns (time, episode, eight signals, two actions; the reward is a
formula) as CSV and as Parquet, reads each with pyarrow alone, then checks it, then checks it and
makes a data set of it. Every measurement runs in a process of its own, so that the peak of memory
is its own; the memory of the data set's arrays is told apart. Seconds are by the clock; on a busy
machine the seconds of processors' time beside them are the better measure.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SIGNALS = [f"signal_{i}" for i in range(8)]
ACTIONS = ["valve", "speed"]
TASK = {
    "name": "benchmark",
    "time": "time",
    "interval": 1,
    "episode": "episode",
    "observations": {name: {"low": -100.0, "high": 100.0} for name in SIGNALS},
    "actions": {name: {"low": -6.0, "high": 6.0} for name in ACTIONS},
    "hold": "zero",
    "reward": {"formula": "-(3 * signal_0 + signal_1) / 100 - 0.1 * abs(valve)"},
    "history": 30,
}
ROWS_OF_EPISODE = 5000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--folder", type=Path, help="where to keep the files (default: nowhere)")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("csv", "parquet"):
            path = folder / f"log-{options.rows}.{kind}"
            if not path.exists():
                write_log(path, options.rows)
            report(path, options.rows)


def write_log(path: Path, rows: int) -> None:
    """A sound log, written a million rows at a time."""
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    schema = pa.schema(
        [("time", pa.timestamp("s")), ("episode", pa.string())]
        + [(name, pa.float64()) for name in (*SIGNALS, *ACTIONS)]
    )
    options = pacsv.WriteOptions(quoting_style="none")
    writer = (
        pacsv.CSVWriter(path, schema, write_options=options)
        if path.suffix == ".csv"
        else pq.ParquetWriter(path, schema)
    )
    with writer:
        for first in range(0, rows, 1_000_000):
            index = np.arange(first, min(first + 1_000_000, rows))
            names = pa.array([f"run {i}" for i in range(rows // ROWS_OF_EPISODE + 1)])
            episode = pa.DictionaryArray.from_arrays(index // ROWS_OF_EPISODE, names)
            columns = [
                pa.array(index).cast(pa.timestamp("s")),
                episode.cast(pa.string()),
                *(
                    pa.array(np.round(random.normal(size=len(index)), 4))
                    for _ in (*SIGNALS, *ACTIONS)
                ),
            ]
            writer.write_table(pa.table(columns, schema=schema))


def report(path: Path, rows: int) -> None:
    """Measure and print, the rival first."""
    results = {}
    for what in ("pyarrow", "check", "load"):
        command = [sys.executable, __file__, "--measure", what, str(path)]
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
        results[what] = json.loads(ended.stdout)
    size = path.stat().st_size / 1e6
    print(f"{path.name}: {rows:,} rows, {size:.0f} MB")
    rival = results["pyarrow"]["seconds"]
    for what, result in results.items():
        seconds, busy, peak = result["seconds"], result["busy"], result["peak_mb"]
        arrays = f", of which arrays {result['arrays_mb']:.0f} MB" if result["arrays_mb"] else ""
        print(
            f"  {what:8} {seconds:7.2f} s (processors {busy:.2f} s)  "
            f"{rows / seconds / 1e6:6.2f} M rows/s  {100 * rival / seconds:4.0f} % of pyarrow  "
            f"peak {peak:.0f} MB{arrays}"
        )


def measure(what: str, path: str) -> dict[str, float]:
    """One measurement; the peak is above what the process had before."""
    before, arrays = 0.0, 0
    if what == "pyarrow":
        import pyarrow.csv as pacsv
        import pyarrow.parquet as pq

        before = peak()
        started, busy = time.perf_counter(), time.process_time()
        table = pacsv.read_csv(path) if path.endswith(".csv") else pq.read_table(path)
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
        assert table.num_columns == 12
    else:
        from moose.data.assemble import check_tables, load_tables
        from moose.tasks.task_file import check_task_file, make_schema

        content = check_task_file(TASK)
        schema = make_schema(content)
        before = peak()
        started, busy = time.perf_counter(), time.process_time()
        if what == "check":
            findings = check_tables([path], schema)
        else:
            dataset, findings = load_tables([path], schema, content.fixes, {})
            arrays = dataset.nbytes
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
        assert {finding.code for finding in findings} <= {"format"}, findings
    return {"seconds": seconds, "busy": busy, "peak_mb": peak() - before, "arrays_mb": arrays / 1e6}


def peak() -> float:
    """The most memory this process has ever had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    main()
