"""The readers of a training's history, in the order in which they are asked: each knows its format by the content, not
by the file's name.

To add a format: a module beside this one with a function from `HistoryFile` to a history, or to None if the file is in
another format; a line in READERS; and a file in that format in tests/data/formats, named after the line. A format of
one's own needs none of this: a package may register a reader of its lines as an entry point (docs/files.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from canary_mlflow.errors import UsageError
from canary_mlflow.files.columns import Columns
from canary_mlflow.files.events import read_events
from canary_mlflow.files.from_columns import SeveralPerEpoch, history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.lines import read_lines
from canary_mlflow.files.printed import read_printed
from canary_mlflow.files.rows import read_csv, read_json, read_jsonl
from canary_mlflow.files.text import HistoryFile, NotUtf8

GROUP = "canary_mlflow.readers"
"""The entry points of other packages: each a function from the lines of a file to its rows, or to None."""

Reader = Callable[[HistoryFile], History | None]
PRINTED: Mapping[str, Reader] = {
    "printed": lambda file: read_printed(file.path, file.lines(), file.notes),
    "lines": lambda file: read_lines(file.path, file.lines(), file.notes),
}
READERS: Mapping[str, Reader] = {
    "tensorboard": read_events,
    "jsonl": read_jsonl,
    "json": read_json,
    "csv": read_csv,
    **PRINTED,
}
"""Name → reader, in order. The file's encoding must be known but for what was printed: numbers are the same in all."""


def read_history(path: Path) -> History:
    """Read `trainer_state.json`, JSONL with one object per row, or CSV with a step column; any of them gzipped.

    Also verl's JSONL, the chart of one run that wandb exported, what Transformers, verl or a script printed, a notebook
    with the table of a training, TensorBoard's event files (one, or the folder of a run), and what a reader of GROUP
    knows.

    NaN and Infinity may stand bare; null and an empty cell mean absent. Steps that go back are read as a resumed run:
    what was written later counts, and a note says so. Raises UsageError, one line, for what cannot be judged.
    """
    try:
        return _first_of(READERS, HistoryFile(path))
    except SeveralPerEpoch:
        return _first_of(READERS, HistoryFile(path, numbered=True))
    except NotUtf8 as error:  # a log, as consoles of Windows write it
        return _first_of(PRINTED, HistoryFile(path, "replace"), error)


def _first_of(readers: Mapping[str, Reader], file: HistoryFile, refused: UsageError | None = None) -> History:
    """What the first of the readers finds that knows the format. Raises the error of the one that was nearest to it."""
    if file.path.is_file():
        readers = {**others(), **readers}
    found = next((found for read in readers.values() if (found := read(file))), None)
    if found is None:
        raise refused or file.refused or UsageError(f"{file.path}: no history of a training that is known; convert it")
    return found


@cache
def others() -> Mapping[str, Reader]:
    """The readers that other packages have registered."""
    return {one.name: _reader(one.name, one.load()) for one in entry_points(group=GROUP)}


def _reader(name: str, rows_of: Callable[[Iterator[str]], object]) -> Reader:
    def read(file: HistoryFile) -> History | None:
        rows = rows_of(file.lines())
        if rows is None:
            return None
        columns = Columns(file.path, numbered=file.numbered)
        columns.add_all(rows, 1)  # type: ignore[arg-type]  # what the package promises
        return history_of(columns, name, file.notes)

    return read
