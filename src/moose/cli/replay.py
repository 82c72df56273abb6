"""``moose replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from moose.cli.options import AsJson, Cache, Quiet, print_json, progress_for

GuardSet = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of the guard, such as novelty_limit=1; may be repeated."),
]


def replay_command(
    policy: Annotated[
        Path, typer.Argument(help="A .moose file, a policy's folder or a finished run.")
    ],
    log: Annotated[str, typer.Argument(help="A CSV file, a data set's folder, or its name.")],
    settings: GuardSet = None,
    fallback: Annotated[
        Path | None, typer.Option(help="A policy to fall back on, such as a clone.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw an episode as .png, .svg or .pdf.")
    ] = None,
    episode: Annotated[int, typer.Option(help="Which episode to draw, from 0.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Write every step to this CSV file.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    cache: Cache = None,
) -> None:
    """Run a policy and its guard along a log: what they would have done beside what was done.

    A CSV file needs the task's observation columns; its action columns and a column `episode` are
    used if they are there. Empty cells are missing sensors.

    For example:

    - `moose replay policy.moose data/small`

    - `moose replay policy.moose log.csv --set novelty_limit=1 --plot replay.png --out steps.csv`
    """
    from moose.config import load_settings
    from moose.errors import ConfigError
    from moose.experiments.replay import (
        draw_replay,
        read_log,
        render,
        replay,
        summarise,
        write_steps,
    )
    from moose.experiments.run_folder import find_policy
    from moose.policies.guard import GuardSettings
    from moose.policies.plain import load_policy

    if plot is not None:
        from moose.experiments.figures import picture_format

        picture_format(plot)  # complains before the work, not after it
    controller = load_policy(find_policy(policy))
    other = None if fallback is None else load_policy(find_policy(fallback))
    guard_settings = load_settings(GuardSettings, overrides=settings or [])
    episodes = read_log(log, controller.facts, cache=cache)
    if plot is not None and episode >= len(episodes):
        raise ConfigError(
            f"There is no episode {episode}: the log has {len(episodes)}.",
            where="--episode",
            advice=f"choose one from 0 to {len(episodes) - 1}",
        )
    replayed, guard = replay(
        controller, episodes, guard_settings, fallback=other, progress=progress_for(quiet)
    )
    if out is not None:
        write_steps(replayed, controller.facts, out)
    if plot is not None:
        draw_replay(replayed[episode], controller.facts, guard_settings, plot)
    result = summarise(replayed, guard, controller.facts)
    if as_json:
        print_json(result)
    else:
        Console(soft_wrap=True).print(render(result))
        for what, place in (("steps", out), ("picture", plot)):
            if place is not None:
                typer.echo(f"{what}: {place}")
