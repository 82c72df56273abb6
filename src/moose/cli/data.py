"""``moose data``: make, list and look at data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from moose.cli.options import AsJson, Cache, Fix, Quiet, print_json, progress_for, warn
from moose.errors import ConfigError
from moose.storage import require_replaceable
from moose.wording import counted

app = typer.Typer(help="Make, list and look at data sets.", no_args_is_help=True)


@app.command("list")
def list_command(as_json: AsJson = False, cache: Cache = None) -> None:
    """List the benchmark data sets and whether they are in the cache.

    For example:

    - `moose data list`

    - `moose data list --json`
    """
    from moose.envs import mujoco, recipes

    rows: list[dict[str, Any]] = []
    for name in (*recipes.dataset_names(), *mujoco.dataset_names()):
        recipe = recipes.any_recipe_of(name)
        path = recipes.cached_path(recipe, cache)
        if isinstance(recipe, recipes.Recipe):
            behaviour, epsilon = str(recipe.behaviour), recipe.epsilon
            expected = recipes.expected_return(recipe)
        else:
            behaviour, epsilon = recipe.policy, recipe.random_share
            expected = mujoco.batch_return(name)
        rows.append(
            {
                "name": name,
                "behaviour": behaviour,
                "epsilon": epsilon,
                "expected_return": expected,
                "is_cached": path.exists(),
                "path": str(path),
            }
        )
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, header_style="bold")
    table.add_column("name")
    table.add_column("behaviour's return", justify="right")
    table.add_column("in cache")
    for row in rows:
        is_cached = "yes" if row["is_cached"] else "no"
        table.add_row(row["name"], f"{row['expected_return']:.1f}", is_cached)
    Console().print(table)
    typer.echo("\ngym/ID: any Gymnasium environment of that ID whose spaces are rows of numbers")


@app.command("make")
def make_command(
    name: Annotated[
        str, typer.Argument(help="A name from 'moose data list', or gym/ and an environment's.")
    ],
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    episodes: Annotated[
        int | None, typer.Option(help="How many episodes (ib/…, default 100).")
    ] = None,
    transitions: Annotated[
        int | None,
        typer.Option(help="How many (gym/…, default 100,000; mujoco/…, default 1,000,000)."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each episode, at most.")] = 1000,
    setpoint: Annotated[
        float | None, typer.Option(help="The plant's setpoint, 0 to 100 (ib/…, default 70).")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Who acts: random (default of gym/…) or expert (default of mujoco/…)."),
    ] = None,
    expert: Annotated[
        Path | None,
        typer.Option(help="What 'moose data expert' wrote: its play with mistakes (needs --out)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write (default: the cache).")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the data set that is in the folder.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    cache: Cache = None,
) -> None:
    """Make a benchmark data set from its seed; the same seed gives the same bits.

    For example:

    - `moose data make ib/bad-0.2`

    - `moose data make ib/global-1.0 --seed 3 --episodes 20 --out data/small`

    - `moose data make gym/Pendulum-v1 --policy random --transitions 20000`

    - `moose data make mujoco/hopper --transitions 50000 --out data/hopper`

    - `moose data make gym/Pendulum-v1 --expert experts/pendulum --out data/swing`
    """
    from moose.envs import recipes
    from moose.envs.gymnasium_recipes import is_gymnasium

    if expert is not None:
        expert, policy = _expert_in(expert, policy, out), "expert"
    of_benchmark = {"episodes": episodes, "setpoint": setpoint}
    of_environment = {"transitions": transitions, "policy": policy}
    given = {
        option: value
        for option, value in (of_benchmark | of_environment).items()
        if value is not None
    }
    if is_gymnasium(name):
        _require_fitting(name, given, of_environment, also=("expert",))
    elif name in recipes.dataset_names():
        _require_fitting(name, given, of_benchmark, also=())
    recipe = recipes.any_recipe_of(name, seed=seed, steps=steps, **given)
    from moose.data.files import FORMAT, save_dataset
    from moose.envs import catalog
    from moose.experiments import summary

    progress = progress_for(quiet)
    if out is None:
        dataset = catalog.cached_dataset(recipe, cache=cache, progress=progress)
        path = recipes.cached_path(recipe, cache)
    else:
        require_replaceable(out, FORMAT if overwrite else None)
        dataset = catalog.make_dataset(recipe, expert=expert, progress=progress)
        save_dataset(dataset, out, overwrite=overwrite)
        path = out
    returns = summary.summarise(dataset)["returns"]
    if as_json:
        print_json(
            {
                "name": name,
                "path": str(path),
                "episodes": dataset.num_episodes,
                "transitions": dataset.num_transitions,
                "fingerprint": dataset.fingerprint,
                "returns": returns,
            }
        )
    else:
        earned, manner = summary.return_lines(returns)
        typer.echo(
            f"{name}: {_size(dataset.num_transitions, dataset.num_episodes)}"
            f"\nreturn:      {earned}\n             {manner}"
            f"\nfolder:      {path}\nfingerprint: {dataset.fingerprint}"
        )


def _size(transitions: int, episodes: int) -> str:
    return f"{counted(transitions, 'transition')} in {counted(episodes, 'episode')}"


def _require_fitting(
    name: str, given: Mapping[str, object], own: Mapping[str, object], also: Sequence[str]
) -> None:
    foreign = [f"--{option}" for option in given if option not in own]
    if foreign:
        raise ConfigError(
            f"{' and '.join(foreign)} cannot be chosen for {name}.",
            where="moose data make",
            advice=f"leave it out; {name.partition('/')[0]}/… takes "
            + ", ".join(f"--{option}" for option in [*own, *also]),
        )


def _expert_in(place: Path, policy: str | None, out: Path | None) -> Path:
    """The file of an expert that was given as such or as the folder of its training."""
    if policy not in {None, "expert"} or out is None:
        raise ConfigError(
            "An expert of one's own plays itself, into a folder of one's own.",
            where="--expert",
            advice="give --out FOLDER, and leave --policy out",
        )
    from moose.experiments.expert import EXPERT

    return place / EXPERT if place.is_dir() else place


@app.command("expert")
def expert_command(
    name: Annotated[str, typer.Argument(help="Such as mujoco/hopper or gym/Pendulum-v1.")],
    out: Annotated[Path, typer.Option(help="Folder of the expert, its curve and checkpoints.")],
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    steps: Annotated[int, typer.Option(help="Steps of the environment.")] = 1_000_000,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, such as noise=0.3.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train an expert online with DDPG, for data sets of its noisy play; the same command goes on.

    For example:

    - `moose data expert mujoco/hopper --out experts/hopper`

    - `moose data expert mujoco/swimmer --seed 1 --set noise=0.3 --out experts/swimmer`
    """
    from moose.config import load_settings
    from moose.envs.gymnasium_recipes import environment_of
    from moose.experiments.expert import ExpertSettings, train_expert

    base = {"environment": environment_of(name), "seed": seed, "steps": steps}
    chosen = load_settings(ExpertSettings, base=base, overrides=settings or ())
    if chosen.steps <= chosen.random_steps:
        warn(
            f"all {chosen.steps:,} steps are random, so that nothing is learned: "
            f"take more, or fewer at random (--set random_steps=1000)"
        )
    summary = train_expert(chosen, out, progress=progress_for(quiet))
    if as_json:
        print_json(summary)
        return
    typer.echo(
        f"{name}: return {summary['return']:.1f} ± {summary['deviation']:.1f} "
        f"over {counted(summary['episodes'], 'episode')}\nfolder: {out}"
    )


@app.command("import")
def import_command(
    task: Annotated[Path, typer.Argument(help="The task file of the plant.")],
    files: Annotated[
        list[str], typer.Argument(help="CSV, Parquet or NPZ files, or folders of them.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    fix: Fix = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the data set that is in the folder.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Check a plant's log and make a data set of it, mended as asked for.

    For example:

    - `moose data import plant.yaml data/*.csv --out data/plant`

    - `moose data import plant.yaml plant.parquet --out data/plant --fix gaps=split`
    """
    from moose.data.files import FORMAT, save_dataset
    from moose.tasks.intake import load_plant

    require_replaceable(out, FORMAT if overwrite else None)
    dataset, findings = load_plant(task, files, fixes=fix or (), progress=progress_for(quiet))
    save_dataset(dataset, out, overwrite=overwrite)
    content = {
        "path": str(out),
        "episodes": dataset.num_episodes,
        "transitions": dataset.num_transitions,
        "fingerprint": dataset.fingerprint,
        "changed": dataset.provenance["changed"],
    }
    if as_json:
        print_json(content | {"findings": [finding.as_tree() for finding in findings]})
        return
    typer.echo(
        f"{_size(dataset.num_transitions, dataset.num_episodes)}"
        f"\nfolder:      {out}\nfingerprint: {dataset.fingerprint}"
    )
    for what, count in dataset.provenance["changed"].items():
        typer.echo(f"mended:      {what} ({count:,})")


@app.command("show")
def show_command(
    source: Annotated[str, typer.Argument(help="A folder, or a name from 'moose data list'.")],
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture here (.png, .svg or .pdf).")
    ] = None,
    discount: Annotated[
        float | None,
        typer.Option(help="Discount of the returns (default: its task's).", min=0, max=1),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps that count into a return (default: its task's).", min=1),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    cache: Cache = None,
) -> None:
    """Summarise a data set: columns, ranges, episodes, return of the batch.

    For example:

    - `moose data show ib/bad-0.2`

    - `moose data show data/small --plot small.png`
    """
    from moose.envs.catalog import find_dataset
    from moose.experiments import figures, summary

    if plot is not None:
        figures.picture_format(plot)  # complains before the work, not after it
    dataset = find_dataset(source, cache=cache, progress=progress_for(quiet))
    content = summary.summarise(dataset, discount=discount, steps=steps)
    if plot is not None:
        counted = content["returns"]
        figures.draw_dataset(dataset, plot, discount=counted["discount"], steps=counted["steps"])
    if as_json:
        print_json(content)
        return
    Console(soft_wrap=True).print(summary.render(content))
    if plot is not None:
        typer.echo(f"\npicture: {plot}")


@app.command("report")
def report_command(
    source: Annotated[
        list[str],
        typer.Argument(help="A data set's folder or name, or with --task the files of a log."),
    ],
    task: Annotated[
        Path | None, typer.Option(help="The task file, if the source is a plant's log.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the numbers and pictures.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the report that is in the folder.")
    ] = False,
    fix: Fix = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    cache: Cache = None,
) -> None:
    """Tell what a log can teach: coverage, how deterministic the behaviour is, returns, memory.

    For example:

    - `moose data report plant.csv --task plant.yaml --out report`

    - `moose data report ib/bad-0.2 --json`
    """
    from moose.experiments import data_figures, data_report, figures
    from moose.storage import atomic_folder, write_manifest
    from moose.tasks.registry import task_of

    replaces = "moose-data-report" if overwrite else None
    if out is not None:
        figures.picture_format(out / data_figures.PICTURES[0])
        require_replaceable(out, replaces)
    progress = progress_for(quiet)
    if task is not None:
        from moose.tasks.intake import load_plant

        dataset, _ = load_plant(task, source, fixes=fix or (), progress=progress)
    else:
        from moose.envs.catalog import find_dataset

        if len(source) > 1 or fix:
            raise ConfigError(
                "Several files and fixes belong to a log, which needs a task file.",
                where="moose data report",
                advice="name it: --task plant.yaml",
            )
        dataset = find_dataset(source[0], cache=cache, progress=progress)
    known = task_of(dataset.provenance)
    content = data_report.report_data(dataset, known)
    if out is not None:
        with atomic_folder(out, replaces=replaces) as folder:
            data_figures.draw_report(dataset, known, content, folder)
            write_manifest(folder, "moose-data-report", 1, content)
    if as_json:
        print_json(content)
        return
    Console(soft_wrap=True).print(data_report.render(content))
    if out is not None:
        typer.echo(f"\npictures: {out}")
