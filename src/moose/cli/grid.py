"""``moose grid``: many runs from one file, and what came of them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from moose.cli.options import AsJson, Cache, Quiet, print_json, progress_for, warn
from moose.errors import ConfigError, RunError

app = typer.Typer(help="Run a grid of trainings and make tables of it.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The grid's folder: what --out was.")]


@app.command("run")
def run_command(
    file: Annotated[Path, typer.Argument(help="The grid: a YAML file.")],
    out: Annotated[
        Path | None, typer.Option(help="The grid's folder (default: runs/ and the file's name).")
    ] = None,
    workers: Annotated[int, typer.Option(help="Runs at the same time.", min=1, max=10_000)] = 1,
    threads: Annotated[
        int | None,
        typer.Option(help="Threads of each worker (default: the cores, shared out).", min=1),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="Processes of this machine, or a Ray cluster (extra 'ray')."),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="With --engine ray: an existing cluster (default: a local one)."),
    ] = None,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            "--known",
            help="A published grid, such as results/lite, whose finished runs are taken over and "
            "not trained again; may be repeated.",
        ),
    ] = None,
    other_bits: Annotated[
        bool,
        typer.Option(
            "--other-bits",
            help="With --known: take over runs of a data set of the same name too if its bits were "
            "others, as those of an earlier version may be.",
        ),
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Try failed runs again, however often they failed.")
    ] = False,
    attempts: Annotated[int, typer.Option(help="How often to try a failing run.", min=1)] = 3,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only say how many runs, core-hours and bytes it will be. Makes missing data sets "
            "and takes a few steps on them, to measure costs.",
        ),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    cache: Cache = None,
) -> None:
    """Run a grid, or go on with it: done runs are skipped, half-done ones resumed.

    For example:

    - `moose grid run grids/table2-lite.yaml --workers 2 --out runs/lite`

    - `moose grid run grids/table2.yaml --workers 2 --dry-run`

    - `moose grid run grids/table2.yaml --known results/table2 --workers 2`

    - `moose grid run grids/table2.yaml --engine ray --address 10.0.0.1:6379 --workers 64`
    """
    if address is not None and engine != "ray":
        raise ConfigError(
            "--address names a Ray cluster, but the engine is local.",
            where="moose grid run",
            advice="add --engine ray, or leave --address out",
        )
    if other_bits and not known:
        raise ConfigError(
            "--other-bits says which known runs count, but none are given.",
            where="moose grid run",
            advice="add --known and the folder of a published grid, or leave --other-bits out",
        )
    from moose.experiments import conductor
    from moose.experiments.engines import make_engine
    from moose.experiments.grid import plan_grid, read_grid
    from moose.experiments.grid_status import taken_over_words
    from moose.experiments.results import read_published_runs
    from moose.experiments.store import Store

    grid = read_grid(file)
    plan_grid(grid, str(file))  # complain before anything is started
    finished = [read_published_runs(place) for place in known or ()]
    folder = out if out is not None else Path("runs") / file.stem
    count = threads if threads is not None else max(1, (os.cpu_count() or 1) // workers)
    progress = progress_for(quiet)
    with _stopped_by_sigterm():
        if dry_run:
            with tempfile.TemporaryDirectory() as logs:
                made = make_engine(engine, workers, count, Path(logs), address=address)
                result = conductor.estimate_grid(
                    grid,
                    str(file),
                    folder,
                    made,
                    threads=count,
                    cache=cache,
                    known=finished,
                    accepts_other_bits=other_bits,
                    progress=progress,
                )
            print_json(result) if as_json else _tell_estimate(result)
            return
        made = make_engine(engine, workers, count, folder / conductor.LOGS, address=address)
        try:
            counts = conductor.run_grid(
                grid,
                str(file),
                folder,
                made,
                threads=count,
                cache=cache,
                known=finished,
                accepts_other_bits=other_bits,
                is_retrying=retry,
                most_attempts=attempts,
                progress=progress,
                warn=warn,
            )
        except KeyboardInterrupt:
            again = f"moose grid run {shlex.quote(str(file))} --out {shlex.quote(str(folder))}"
            again += "".join(f" --known {shlex.quote(str(place))}" for place in known or ())
            again += " --other-bits" * other_bits
            typer.echo(f"To go on: {again} --workers {workers} --threads {count}", err=True)
            raise
    with Store(folder) as store:
        taken_over = len(store.taken_over())
    if as_json:
        print_json({"grid": str(folder), "runs": counts, "taken_over": taken_over})
    else:
        done = f"{counts['done']} runs done{taken_over_words(taken_over)}"
        typer.echo(f"{grid.name}: {done}, {counts['failed']} failed")
        if counts["done"]:
            typer.echo(f"table: moose grid table {shlex.quote(str(folder))}")
    if counts["failed"]:
        raise RunError(
            f"{counts['failed']} of {sum(counts.values())} runs failed.",
            where=str(folder),
            advice=f"see why with 'moose grid status {shlex.quote(str(folder))}', mend it, and "
            "start the grid again with --retry",
        )


@app.command("status")
def status_command(folder: Folder, as_json: AsJson = False) -> None:
    """Say how many runs are done, running, failed and waiting, and how long the rest takes.

    For example:

    - `moose grid status runs/lite`

    - `moose grid status runs/lite --json`
    """
    from moose.experiments.grid_status import grid_status, render
    from moose.experiments.store import Store

    with Store(folder) as store:
        status = grid_status(store)
    if as_json:
        print_json(status)
    else:
        Console(soft_wrap=True).print(render(status))


@app.command("table")
def table_command(
    folder: Folder,
    table_format: Annotated[
        Literal["markdown", "csv", "latex"], typer.Option("--format", help="How to write it.")
    ] = "markdown",
    as_json: AsJson = False,
) -> None:
    """Print the table of a grid, with the paper's figures beside ours.

    For example:

    - `moose grid table runs/lite`

    - `moose grid table runs/lite --format latex > table2.tex`
    """
    from moose.experiments.store import Store
    from moose.experiments.tables import FORMATS, make_table

    with Store(folder) as store:
        table = make_table(store)
    if as_json:
        print_json(table)
    else:
        typer.echo(FORMATS[table_format](table), nl=False)


@app.command("figures")
def figures_command(
    folder: Folder,
    to: Annotated[
        Path | None, typer.Option(help="Where the pictures go (default: figures/ in the folder).")
    ] = None,
    picture_format: Annotated[
        Literal["svg", "png", "pdf"], typer.Option("--format", help="Their format.")
    ] = "svg",
    as_json: AsJson = False,
) -> None:
    """Draw the learning curves of a grid: mean ± deviation over seeds, dashed line for the batch.

    For example:

    - `moose grid figures runs/lite`

    - `moose grid figures runs/lite --format png --to pictures`
    """
    from moose.experiments.grid_figures import write_figures
    from moose.experiments.store import Store

    with Store(folder) as store:
        pictures = write_figures(store, to or folder / "figures", picture_format)
    if as_json:
        print_json({"pictures": [str(path) for path in pictures]})
    elif pictures:
        typer.echo("\n".join(str(path) for path in pictures))
    else:
        typer.echo("No run is finished yet: there is nothing to draw.")


@app.command("publish")
def publish_command(
    folder: Folder,
    results: Annotated[Path, typer.Argument(help="The folder of results, such as results.")],
    as_json: AsJson = False,
) -> None:
    """Write what a grid has found into a folder of results, small enough to be kept for ever.

    From there another machine can go on with it: see `moose grid run --known`.

    For example:

    - `moose grid publish runs/lite results`
    """
    from moose.experiments.results import publish
    from moose.experiments.store import Store

    with Store(folder) as store:
        place = publish(store, results)
    print_json({"results": str(place)}) if as_json else typer.echo(f"results: {place}")


@app.command("page")
def page_command(
    results: Annotated[Path, typer.Argument(help="The folder of results.")],
    to: Annotated[Path | None, typer.Option(help="The page to write (default: print it).")] = None,
) -> None:
    """Make the page of results from a folder of results.

    For example:

    - `moose grid page results --to docs/results.md`
    """
    from moose.experiments.results import make_page
    from moose.storage import atomic_file

    if to is None:
        typer.echo(make_page(results, Path.cwd()), nl=False)
        return
    text = make_page(results, to.parent)
    with atomic_file(to) as temporary:
        temporary.write_text(text, encoding="utf-8")
    typer.echo(f"page: {to}")


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, as batch systems send it, be as clean a stop as Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell_estimate(result: dict[str, Any]) -> None:
    left = result["left"]
    typer.echo(f"{result['name']}: {result['runs']} runs, {result['done']} of them done")
    typer.echo(
        f"left: {left['runs']} runs, {_time(3600 * left['core_hours'])} of one core, "
        f"{_time(3600 * left['hours'])} with {result['workers']} workers of {result['threads']} "
        f"threads, {_size(left['bytes'])} on disk"
    )
    for variant in result["variants"]:
        seconds = variant["shared"] + variant["own"]
        typer.echo(
            f"  {variant['label']}: {_time(seconds)} of one core a run, of which "
            f"{_time(variant['shared'])} for fits that may be shared and "
            f"{_time(variant['evaluations'])} for evaluations"
        )


def _time(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _size(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
