"""What a script prints of its own training: `epoch 1 (20/4292), loss: 0.66, lr: 1e-05`, `step 7 | loss=0.3` and the
like. No two scripts write the same, so the lines are known by what they have in common: the same names, over and over,
one of them a loss or a reward. A row may take several lines, as DeepSpeed-Chat's do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from canary_mlflow.files.columns import Columns
from canary_mlflow.files.from_columns import history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.limits import MAX_ROWS, too_many_rows
from canary_mlflow.files.names import ROUNDED, is_canonical, name_of_column, step_column

_LEARNED = {"loss", "policy_loss", "reward_mean", "score_mean", "reward_margin"}
LEAST = 12  # lines; fewer are a report rather than a log
_LONGEST = 2000  # characters of a line
_WORDS = 3  # in a name, such as "Avg Response Len"
_BACK = 60  # characters before the last of them in which the others are looked for
_PAIR = re.compile(
    r"(?<![\w/.%-])([^\W\d][\w/.%-]*) ?[:=]\s{0,9}([-+]?(?:\d|\.\d|nan\b|inf\b)[^\s,|;:)\]}]*)", re.IGNORECASE
)
_BAR = re.compile(r"\| {0,9}(\d+)/\d+ \[")  # tqdm's count; its bar is drawn again and again with the values of before
_STEP = re.compile(r"\b(?:step|iteration|iter|update)s?\b[ :=#\[]{0,3}(\d+)", re.IGNORECASE)
_APART = re.compile(r"[][,|;()]| - ")  # ends what stands before a name
# Words of a name that make no other metric of it.
_PASSED = {"avg", "average", "mean", "batch", "current", "running", "training"}


class _Line(NamedTuple):
    number: int  # among the lines that say anything
    step: int | None
    pairs: dict[str, float]


def read_script_lines(path: Path, lines: Iterable[str], notes: list[str]) -> History | None:
    """The rows of the form that occurs most often; None if no form does so often enough."""
    forms: dict[tuple[str, ...], list[_Line]] = {}
    for number, (line, pairs) in enumerate(_telling(lines), 1):
        if number > MAX_ROWS:
            raise too_many_rows(path)
        rows = forms.setdefault(tuple(pairs), [])
        bar = _BAR.search(line)
        if not (bar and rows and rows[-1].pairs == pairs):
            step = bar or _STEP.search(line)
            rows.append(_Line(number, int(step[1]) if step else None, pairs))
    learned = [rows for names, rows in forms.items() if not _LEARNED.isdisjoint(map(name_of_column, names))]
    rows = max(learned, key=lambda form: (len(form), bool(_steps(form))), default=[])
    if len(rows) < LEAST:
        return None
    steps = _steps(rows)
    told = _joined(rows, [form for form in forms.values() if form is not rows])
    notes = [*notes, f"read from {len(rows):,} lines with {', '.join(told[0])}"[:150]]
    columns = Columns(path, row_word="line")
    for number, row in enumerate(told, 1):
        columns.add({"step": steps[number - 1] if steps else number, **dict(_known(row))}, number)
    return history_of(columns, "printed", notes if steps else [*notes, "without steps: the lines are numbered"])


def _telling(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """The lines with a metric that we know, and what each of them says."""
    for line in lines:
        pairs = _pairs(line) if len(line) <= _LONGEST else {}
        if any(is_canonical(name_of_column(name)) for name in pairs):
            yield line, pairs


def _joined(rows: list[_Line], others: list[list[_Line]]) -> list[dict[str, float]]:
    """What each row says, with what a line of another form says that stands once between any two of them."""
    told = [dict(row.pairs) for row in rows]
    for other in others:
        first, second = (rows, other) if rows[0].number < other[0].number else (other, rows)
        if len(first) - len(second) in (0, 1) and _alternate(first, second):
            for row, line in zip(told, other, strict=False):
                row.update({name: value for name, value in line.pairs.items() if name not in row})
    return told


def _alternate(first: list[_Line], second: list[_Line]) -> bool:
    """Whether a line of the second form follows each of the first, except the last one perhaps."""
    return all(one.number < two.number for one, two in zip(first, second, strict=False)) and all(
        two.number < one.number for two, one in zip(second, first[1:], strict=False)
    )


def _steps(rows: list[_Line]) -> list[int]:
    """The steps that the lines say; none if one lacks it, or they begin again with each epoch."""
    steps = [row.step for row in rows if row.step is not None]
    return steps if len(steps) == len(rows) and steps == sorted(steps) else []


def _pairs(line: str) -> dict[str, float]:
    pairs: dict[str, float] = {}
    for found in _PAIR.finditer(line):
        with suppress(ValueError):
            pairs.setdefault(_name(line[max(found.start(1) - _BACK, 0) : found.end(1)]), float(found[2]))
    return pairs


def _name(before: str) -> str:
    """The name that ends here, of several words perhaps: `INFO epoch 3 loss` is the loss, a `task loss` another."""
    words = _APART.split(before)[-1].split()[-_WORDS:]
    while len(words) > 1 and not is_canonical(name_of_column(" ".join(words))):
        if words[0].isalpha() and words[0].lower() not in _PASSED and not words[0].isupper() and not _digits(words):
            break
        del words[0]
    return " ".join(words)


def _digits(words: list[str]) -> bool:
    """Whether a number follows the first of the words: `epoch 3 loss`."""
    return not words[1].isalpha() and words[1][0].isdigit()


def _known(row: dict[str, float]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if step_column([name]) is None and (value or name_of_column(name) not in ROUNDED):
            yield name, value
