"""Other people's data sets: D4RL-style HDF5 and NPZ, and Minari, read without their packages.

Files may come from anywhere. Nothing in them is executed, and what reaches outside of the file or
claims to be larger than it can be is refused: links, external and virtual storage, foreign filters,
objects, absurd sizes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc

from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.data.typed_tables import read_arrays
from moose.errors import DataError, MissingExtraError, UserError
from moose.storage import atomic_folder, named_os_errors, read_json

if TYPE_CHECKING:
    import h5py

_MAGIC = b"\x89HDF\r\n\x1a\n"
_ABSURD_RATIO = 1100  # what the best of the usual filters makes of zeros
_SMALL = 1 << 20
_KNOWN_FILTERS = {1, 2, 3, 6, 32000}  # deflate, shuffle, checksum, scale-offset, lzf
_MOST_EPISODES = 10_000_000
Arrays = Mapping[str, npt.NDArray[Any]]


def is_interchange(path: Path) -> bool:
    """Whether this is an HDF5 file, a Minari folder or an NPZ archive of transitions."""
    if path.is_dir():
        return _minari_data(path) is not None
    with named_os_errors(path), open(path, "rb") as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def read_interchange(
    path: Path,
    observation_names: Sequence[str] | None = None,
    action_names: Sequence[str] | None = None,
    *,
    episode_steps: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read a D4RL-style file (``.hdf5``, ``.npz``) or a Minari folder.

    Args:
        path: The file or folder.
        observation_names: Names of the observations; ``observation_0`` and so on by default.
        action_names: Names of the actions; ``action_0`` and so on by default.
        episode_steps: For old D4RL files that do not say where episodes end by a time limit: the
            steps of that limit.
        provenance: What to keep with the data.

    Returns:
        The data set.

    Raises:
        DataError: With the place of what is wrong, or why the file is refused.
    """
    path = Path(path)
    names = (observation_names, action_names)
    if path.is_dir():
        episodes, kept_names = _read_minari(path)
        names = tuple(given or kept for given, kept in zip(names, kept_names, strict=True))  # type: ignore[assignment]
    elif path.suffix == ".npz":
        episodes = _cut_flat(read_arrays(path), path, episode_steps)
    else:
        with _open_hdf5(path) as file:
            if "episode_0" in file:
                episodes = _episodes_of_groups(file, path)
            else:
                episodes = _cut_flat(_flat_arrays(file, path), path, episode_steps)
    if not episodes:
        raise DataError("There is no episode.", where=str(path), advice="check the file")
    num_observations, num_actions = (
        np.shape(values)[-1] if np.ndim(values) == 2 else 1
        for values in (episodes[0].observations, episodes[0].actions)
    )
    try:
        return Dataset.from_episodes(
            episodes,
            names[0] or [f"observation_{i}" for i in range(num_observations)],
            names[1] or [f"action_{i}" for i in range(num_actions)],
            dict(provenance or {}) | {"files": [path.name]},
        )
    except DataError as error:
        raise DataError(error.what, where=f"{path}: {error.where}", advice=error.advice) from error


def write_minari(dataset: Dataset, path: Path, dataset_id: str) -> None:
    """Write a data set as a Minari folder, whole or not at all.

    Args:
        dataset: What to write; every episode needs its final observation.
        path: The folder; Minari's own loader takes ``path / "data"``.
        dataset_id: Minari's name for it, such as ``plant/log-v0``.
    """
    if importlib.util.find_spec("minari") is None:
        raise MissingExtraError("minari", "minari", "Writing a Minari data set")
    if not dataset.final_observed.all():
        episode = int(np.argmin(dataset.final_observed))
        raise DataError(
            "Minari needs an observation after the last action of each episode.",
            where=f"episode {episode}",
            advice="leave such episodes out with select_episodes",
        )
    import gymnasium  # noqa: PLC0415 (optional dependencies)
    from minari.data_collector import EpisodeBuffer  # noqa: PLC0415
    from minari.dataset.minari_storage import MinariStorage  # noqa: PLC0415

    def box(values: npt.NDArray[np.float32]) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(-np.inf, np.inf, values.shape[1:], np.float32)

    with atomic_folder(path) as folder:
        (folder / "data").mkdir()
        storage = MinariStorage.new(
            folder / "data", box(dataset.observations), box(dataset.actions), data_format="hdf5"
        )
        storage.update_episodes(
            EpisodeBuffer(id=index, **arrays) for index, arrays in enumerate(_buffers(dataset))
        )
        names = {
            "observation_names": list(dataset.observation_names),
            "action_names": list(dataset.action_names),
        }
        storage.update_metadata(
            {
                "dataset_id": dataset_id,
                "minari_version": importlib.metadata.version("minari"),
                "moose": json.dumps(names),
            }
        )


def _buffers(dataset: Dataset) -> Iterator[dict[str, Any]]:
    for episode, (start, length) in enumerate(
        zip(dataset.offsets[:-1], dataset.lengths, strict=True)
    ):
        first = start + episode
        flags = np.zeros((2, length), np.bool_)
        flags[:, -1] = dataset.terminated[episode], dataset.truncated[episode]
        yield {
            "observations": np.array(dataset.observations[first : first + length + 1]),
            "actions": np.array(dataset.actions[start : start + length]),
            "rewards": np.array(dataset.rewards[start : start + length], np.float64),
            "terminations": flags[0],
            "truncations": flags[1],
            "infos": {},
        }


# --- D4RL --------------------------------------------------------------------------------------


def _cut_flat(arrays: Arrays, path: Path, episode_steps: int | None) -> list[Episode]:
    """Cut flat transitions into episodes; none ever goes across an end."""
    needed = ("observations", "actions", "rewards", "terminals")
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise DataError(
            f"There is no array '{missing[0]}'.",
            where=str(path),
            advice=f"a D4RL-style file has {', '.join(needed)}",
        )
    observations, actions, rewards = (_rank(arrays[n], n, path) for n in needed[:3])
    count = len(rewards)
    terminals = _flags(arrays, "terminals", count, path)
    for name, values in (("observations", observations), ("actions", actions)):
        if len(values) != count:
            raise DataError(
                f"There are {len(values)} {name} for {count} rewards.",
                where=str(path),
                advice="all arrays need as many rows",
            )
    successors = arrays.get("next_observations")
    if successors is not None and np.shape(successors) != observations.shape:
        raise DataError(
            f"'next_observations' has shape {np.shape(successors)}; 'observations' has "
            f"{observations.shape}.",
            where=str(path),
            advice="all arrays need as many rows",
        )
    ends = terminals.copy()
    if "timeouts" in arrays:
        ends |= _flags(arrays, "timeouts", count, path)
    elif successors is not None:
        ends[:-1] |= (np.asarray(successors)[:-1] != observations[1:]).any(axis=1)
    elif episode_steps is None:
        raise DataError(
            "The file does not say where episodes end by a time limit: it has neither 'timeouts' "
            "nor 'next_observations'.",
            where=str(path),
            advice="say how many steps an episode has at most (episode_steps)",
        )
    starts = np.concatenate([[0], np.flatnonzero(ends[:-1]) + 1]) if count else np.zeros(0, int)
    episodes = []
    for start, stop in zip(starts, [*starts[1:], count], strict=True):
        for first in range(start, stop, episode_steps or max(stop - start, 1)):
            last = min(first + (episode_steps or stop - start), stop)
            frames = observations[first:last]
            if successors is not None:
                frames = np.concatenate([frames, np.asarray(successors)[last - 1 : last]])
            episodes.append(
                Episode(
                    frames,
                    actions[first:last],
                    rewards[first:last],
                    terminated=bool(terminals[last - 1]),
                    truncated=bool(ends[last - 1] and not terminals[last - 1]) or last < stop,
                )
            )
    return episodes


def _flat_arrays(file: h5py.File, path: Path) -> dict[str, npt.NDArray[Any]]:
    names = (*("observations", "actions", "rewards", "terminals", "timeouts", "next_observations"),)
    return {name: _array(file, name, path) for name in names if name in file}


def _flags(arrays: Arrays, name: str, count: int, path: Path) -> npt.NDArray[np.bool_]:
    values = np.asarray(arrays[name])
    if values.shape not in {(count,), (count, 1)} or values.dtype.kind not in "biuf":
        raise DataError(
            f"'{name}' has shape {values.shape} and type {values.dtype}; {count} flags are needed.",
            where=str(path),
            advice="give one true or false for each transition",
        )
    return values.reshape(count).astype(np.bool_)


def _rank(values: npt.NDArray[Any], name: str, path: Path) -> npt.NDArray[Any]:
    """Observations and actions as tables, rewards as a list."""
    rank = 1 if name == "rewards" else 2
    values = np.asarray(values)
    if rank == 1 and values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if rank == 2 and values.ndim == 1:
        return values[:, None]
    if values.ndim != rank or values.dtype.kind not in "fiub":
        raise DataError(
            f"'{name}' has shape {values.shape} and type {values.dtype}.",
            where=str(path),
            advice="only tables of numbers can be read, no images or structures",
        )
    return values


# --- Minari ------------------------------------------------------------------------------------


def _minari_data(path: Path) -> Path | None:
    """The folder with the data of a Minari data set."""
    for folder in (path / "data", path):
        if (folder / "main_data.hdf5").is_file() or (folder / "metadata.json").is_file():
            return folder
    return None


def _read_minari(path: Path) -> tuple[list[Episode], tuple[list[str] | None, list[str] | None]]:
    folder = _minari_data(path)
    if folder is None:
        raise DataError(
            "This folder is no Minari data set.",
            where=str(path),
            advice="give the folder that has 'data' with 'metadata.json' in it",
        )
    metadata = read_json(folder / "metadata.json") if (folder / "metadata.json").is_file() else {}
    names = _kept_names(metadata)
    if (folder / "main_data.hdf5").is_file():
        with _open_hdf5(folder / "main_data.hdf5") as file:
            return _episodes_of_groups(file, folder / "main_data.hdf5"), names
    numbers = sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())
    return [_arrow_episode(folder / str(number)) for number in numbers], names


def _kept_names(metadata: Any) -> tuple[list[str] | None, list[str] | None]:
    """The names of columns that :func:`write_minari` left behind, if it did."""
    text = metadata.get("moose") if isinstance(metadata, dict) else None
    try:
        names = json.loads(text) if isinstance(text, str) else {}
        found = [names.get(key) for key in ("observation_names", "action_names")]
    except (ValueError, AttributeError):
        return None, None
    sound = [
        kept if isinstance(kept, list) and all(isinstance(name, str) for name in kept) else None
        for kept in found
    ]
    return sound[0], sound[1]


def _episodes_of_groups(file: h5py.File, path: Path) -> list[Episode]:
    count = sum(1 for name in file if name.startswith("episode_"))
    episodes = []
    for number in range(min(count, _MOST_EPISODES)):
        name = f"episode_{number}"
        if name not in file:
            raise DataError(
                f"There is no group '{name}'.", where=str(path), advice="the file is incomplete"
            )
        _require_plain_link(file, name, path)
        arrays = {
            key: _array(file[name], key, path)
            for key in ("observations", "actions", "rewards", "terminations", "truncations")
        }
        episodes.append(_minari_episode(arrays, f"{path}: {name}"))
    return episodes


def _minari_episode(arrays: Arrays, where: str) -> Episode:
    place = Path(where)
    count = len(arrays["rewards"])
    terminations = _flags(arrays, "terminations", count, place)
    truncations = _flags(arrays, "truncations", count, place)
    return Episode(
        _rank(arrays["observations"], "observations", place),
        _rank(arrays["actions"], "actions", place),
        _rank(arrays["rewards"], "rewards", place),
        terminated=bool(terminations[-1:].any()),
        truncated=bool(truncations[-1:].any()),
    )


def _arrow_episode(folder: Path) -> Episode:
    files = sorted(folder.glob("*.arrow")) + sorted(folder.glob("*.feather"))
    with _named_errors(folder):
        if len(files) != 1:
            raise ValueError(f"{len(files)} Arrow files")
        with pa.memory_map(str(files[0])) as source:
            table = pa.ipc.open_file(source).read_all()
            arrays = {
                name: _plain_column(table.column(name).combine_chunks())
                for name in ("observations", "actions", "rewards", "terminations", "truncations")
            }
    # All columns are as long as the observations; the last row of the others is a filler.
    cut = {name: values[:-1] for name, values in arrays.items() if name != "observations"}
    return _minari_episode(arrays | cut, str(folder))


def _plain_column(column: pa.Array) -> npt.NDArray[Any]:
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    if pa.types.is_fixed_size_list(column.type):
        return _plain_column(column.flatten()).reshape(len(column), column.type.list_size)
    if column.null_count:
        raise ValueError("missing values")
    array: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array


# --- HDF5 --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_hdf5(path: Path) -> Iterator[h5py.File]:
    if importlib.util.find_spec("h5py") is None:
        raise MissingExtraError("h5py", "hdf5", "Reading HDF5")
    import h5py  # noqa: PLC0415 (an optional dependency)

    with named_os_errors(path), open(path, "rb"):
        pass  # says what is wrong with the place, which h5py does not
    with _named_errors(path), h5py.File(path, "r", locking=False) as file:
        yield file


@contextlib.contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise _unsound(path, error) from error
    except (AttributeError, IndexError, OverflowError, pa.ArrowException) as error:
        raise _unsound(path, error) from error


def _unsound(path: Path, error: Exception) -> DataError:
    return DataError(
        f"The file cannot be read as a data set ({str(error)[:200]}).",
        where=str(path),
        advice="check that it is complete and of the right kind",
    )


def _array(group: h5py.Group, name: str, path: Path) -> npt.NDArray[Any]:
    """An array of the file itself, if it is one and its size can be true."""
    import h5py  # noqa: PLC0415 (an optional dependency)

    where = f"{group.name.rstrip('/')}/{name}"
    if name not in group:
        raise DataError(f"There is no array '{where}'.", where=str(path), advice="check the file")
    _require_plain_link(group, name, path)
    values = group[name]
    if not isinstance(values, h5py.Dataset):
        raise DataError(
            f"'{where}' is a group, not an array.",
            where=str(path),
            advice="only tables of numbers can be read, no structured observations",
        )
    if values.external or values.is_virtual:
        raise _refused(where, "keeps its data in another file", path)
    if values.dtype.kind not in "fiub":
        raise _refused(where, f"holds {values.dtype}, not numbers", path)
    plist = values.id.get_create_plist()
    filters = {plist.get_filter(i)[0] for i in range(plist.get_nfilters())}
    if not filters <= _KNOWN_FILTERS:
        raise _refused(where, "is packed by a filter that is not built in", path)
    stored = values.id.get_storage_size()
    if values.nbytes > max(_SMALL, _ABSURD_RATIO * max(stored, 1)):
        raise _refused(where, f"claims {values.nbytes} bytes, but stores {stored}", path)
    array: npt.NDArray[Any] = values[()]
    return array


def _require_plain_link(group: h5py.Group, name: str, path: Path) -> None:
    import h5py  # noqa: PLC0415 (an optional dependency)

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise _refused(f"{group.name.rstrip('/')}/{name}", "is a link to somewhere else", path)


def _refused(name: str, why: str, path: Path) -> DataError:
    return DataError(
        f"'{name}' {why}.",
        where=str(path),
        advice="such files are refused; get plain arrays from its source",
    )
