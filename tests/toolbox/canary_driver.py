"""Loads policies under an audit hook: ``canary_driver.py PATH...`` prints one JSON line for each.

What a loader has no business to do (start a program, unpickle, import, open a socket, write, or
read outside of the policy) is printed with the outcome. The first path is a sound policy's folder
with its ``.moose`` file beside it; ``--control`` instead unpickles the others, to show that the
hook would notice.
"""

from __future__ import annotations

import json
import os
import pickle  # noqa: TID251 (the control is to be caught)
import sys
from pathlib import Path

import moose
from moose.errors import UserError

FORBIDDEN = {
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class"),
    *("socket.connect", "socket.bind", "import", "exec", "compile", "ctypes.dlopen", "os.remove"),
    *("os.rename", "os.mkdir", "shutil.rmtree", "os.symlink", "os.truncate", "os.chmod"),
}
WARM_UP, *PATHS = sys.argv[1:]
allowed: Path | None = None
events: list[str] = []


def watch(event, arguments):
    if allowed is None:
        return
    if event in FORBIDDEN:
        events.append(f"{event} {arguments!r}"[:200])
    elif event == "open":
        name, mode, flags = arguments
        place = (
            Path(os.path.realpath(name)) if isinstance(name, (str, bytes, os.PathLike)) else None
        )
        is_write = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if is_write or place is None or not place.is_relative_to(allowed):
            events.append(f"open {name!r} {mode!r}")


def unpickle(path):
    return pickle.loads(Path(path).read_bytes())  # noqa: S301


load = moose.load_policy
if WARM_UP == "--control":
    load = unpickle
else:
    for sound in (Path(WARM_UP), Path(WARM_UP).with_suffix(".moose")):
        load(sound)  # so that everything is imported
sys.addaudithook(watch)
for each in PATHS:
    events.clear()
    place = Path(os.path.realpath(each))
    outcome = {"error": None, "message": ""}
    allowed = place
    try:
        load(each)
    except UserError as error:
        allowed = None
        outcome = {"error": type(error).__name__, "message": str(error)}
    except BaseException as error:
        allowed = None
        outcome = {"error": "crash", "message": repr(error)}
    allowed = None
    print(json.dumps({"path": each, "events": list(events), **outcome}), flush=True)
