"""The contract of a log format: a line in READERS, a file in tests/data/formats that it alone is asked for, one history
whatever the format; and readers of one's own, which other packages register."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from history_files import values, write

from canary_mlflow.errors import UsageError
from canary_mlflow.files import reading
from canary_mlflow.files.reading import GROUP, READERS, read_history
from canary_mlflow.files.text import HistoryFile

FORMATS = Path(__file__).resolve().parents[1] / "data/formats"


@pytest.mark.parametrize("name", READERS)
def test_each_format_has_a_file_that_its_reader_knows_and_reads_as_the_others_read_theirs(name: str) -> None:
    (path,) = FORMATS.glob(f"{name}.*")
    knows = next(one for one, read in READERS.items() if read(HistoryFile(path)))
    assert knows == name
    history = read_history(path)
    assert history.series["loss"].steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert values(history, "loss") == [3.0, 2.5, 2.25, 2.0, 1.75, 1.5]
    assert values(history, "grad_norm") == [1.25] * 6


def test_a_format_of_ones_own_is_read_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint(name="mine", value=f"{__name__}:of_mine", group=GROUP)
    monkeypatch.setattr(reading, "entry_points", lambda group: [entry] if group == GROUP else [])
    reading.others.cache_clear()
    try:
        history = read_history(write(tmp_path, "a.log", "MINE\n" + "".join(f"{at};{9 - at}\n" for at in range(6))))
        assert (history.kind, values(history, "loss"), history.last_step) == ("mine", [9, 8, 7, 6, 5, 4], 5)
        assert read_history(FORMATS / "csv.csv").kind == "csv"  # it says None of what is not its own
        with pytest.raises(UsageError, match="holds no row"):
            read_history(write(tmp_path, "b.log", "MINE\n"))
    finally:
        reading.others.cache_clear()


def of_mine(lines: Iterator[str]) -> list[dict[str, float]] | None:
    """The rows of a format that begins with the word MINE."""
    if next(lines, "").strip() != "MINE":
        return None
    return [{"step": int(line.split(";")[0]), "loss": float(line.split(";")[1])} for line in lines]
