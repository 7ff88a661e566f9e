"""Lines that say their step beside `key: value`, `key=value` or, as nanoGPT's do, `key value`: those of torchtitan,
torchtune, Megatron, NeMo, litgpt, mlx-lm and tqdm's bar, and of any script that prints so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from canary_mlflow.files.columns import FEW, Columns, unreadable
from canary_mlflow.files.from_columns import SeveralPerEpoch, history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.names import EPOCH, is_canonical, is_rounded_zero, name_of_column, step_column
from canary_mlflow.files.numbers import BEGINS, OF_VALUES, UNIT, measured, number, other_unit, speed_of
from canary_mlflow.files.source import MAX_LOG_LINE, MAX_ROWS, too_many_rows

_LEARNED = {"loss", "policy_loss", "reward_mean", "score_mean", "reward_margin"}
_TELLS = _LEARNED | {"eval_loss", "eval_reward"}  # one of them makes a line a row
_WORDS = 3  # in a name, such as "time per iteration"
_NUMBER, _UNIT = rf"({BEGINS}[^\s,|;:)\]}}]*)", rf"({UNIT}|(?:{OF_VALUES})\b)"
# What stands there instead of a number is matched too: a name that other lines have a number for.
_PAIR = re.compile(
    rf"(?<![\w/.%-])([^\W\d][\w/.%-]*)['\"]?(?: ?\({_UNIT}\))? ?[:=]\s{{0,20}}"
    rf"(?:{_NUMBER}(?: {_UNIT})?(?!\s?[:=])|(?=\S))",
    re.IGNORECASE,
)
# The same with nothing between, `iter 20: loss 2.31, time 40ms`: a name we know.
_PLAIN = re.compile(
    rf"(?<![\w/.%-])([^\W\d][\w/.%-]*)()\s{{1,9}}(?:{_NUMBER}|(?=[*?#<-]|none\b|n/a\b|null\b))()", re.IGNORECASE
)
_SPEED = re.compile(rf"(?<![\w/.,-])(\d[\d.]*) ?({UNIT})(?!\s*[:=\d])", re.IGNORECASE)  # a number with its unit alone
_BAR = re.compile(r"\| {0,9}(\d+)/(\d+) \[")  # tqdm's count; its bar is drawn again and again with the values of before
_STEP = re.compile(r"\b(?:step|iteration|iter|update)s?\b[ :=#\[]{0,9}(\d+)", re.IGNORECASE)
_EPOCH = re.compile(r"\bepoch\b[ :=#\[]{0,3}(\d+)", re.IGNORECASE)
_ASIDE = re.compile(r"\b(?:eval|val|test)", re.IGNORECASE)
_VALUE = re.compile(rf"{BEGINS}|(?:none|null|n/a|\W+)$", re.IGNORECASE)
_APART = re.compile(r"""[][,|;(){}'"]| - """)  # ends what stands before a name


class _Line(NamedTuple):
    step: int | None
    epoch: int | None
    pairs: dict[str, float | None]  # None: a zero that few decimals may leave of a number
    aside: bool  # of an evaluation, by its words
    planned: int | None  # steps, by a bar


# Which lines are the training's: the first of these that holds for enough of them.
_OF_TRAINING: tuple[Callable[[_Line], bool], ...] = (
    lambda line: line.step is not None and not line.aside,
    lambda line: not line.aside,
    lambda line: True,
)


def read_lines(path: Path, lines: Iterable[str], notes: list[str]) -> History | None:
    """The lines that say a step, or else an epoch, beside a loss or a reward, with what other lines say of an
    evaluation; None if they are few."""
    told = list(_told(path, lines))
    is_row = next((one for one in _OF_TRAINING if sum(map(one, told)) >= FEW), None)
    if is_row is None:
        return None
    try:
        return _history(path, told, is_row, notes)
    except SeveralPerEpoch:
        return _history(path, told, is_row, notes, numbered=True)


def _history(
    path: Path, told: list[_Line], is_row: Callable[[_Line], bool], notes: list[str], *, numbered: bool = False
) -> History:
    rows = [line for line in told if line.pairs and is_row(line)]
    by_epoch = any(line.step is None for line in rows) or _begin_again(rows)
    columns, at = Columns(path, row_word="line", numbered=numbered), None
    for line in told:
        place = line.epoch if by_epoch else line.step
        at = at if place is None else place  # an evaluation that says only its epoch is of the step before it
        pairs = line.pairs if is_row(line) else {name: line.pairs[name] for name in line.pairs if _is_evaluated(name)}
        if at is not None and (pairs or line is told[-1]):
            columns.add({EPOCH if by_epoch else "step": at, **pairs}, columns.rows + 1)
    said = f"read from {len(rows):,} lines with {', '.join(rows[0].pairs)}"
    planned = None if by_epoch or numbered else rows[-1].planned
    return history_of(columns, "printed", [*notes, said[:150]], planned=planned)


def _begin_again(rows: list[_Line]) -> bool:
    """Whether the steps begin again where the epoch goes on: then they are those of an epoch."""
    places = [(line.step, line.epoch) for line in rows if line.step is not None and line.epoch is not None]
    return any(step < before and epoch > last for (before, last), (step, epoch) in pairwise(places))


def _is_evaluated(name: str) -> bool:
    return name_of_column(name).startswith("eval_")


def _is_known(name: str) -> bool:
    return is_canonical(name_of_column(name)) or other_unit(name) is not None


def _told(path: Path, lines: Iterable[str]) -> Iterator[_Line]:
    """The lines that say when and what was learned. Raises UsageError for one with a loss or a reward that is no
    number, where a line before it has one."""
    had: set[str] = set()
    usual: set[str] = set()  # what is known in the last row
    last: _Line | None = None
    stands: _Line | None = None  # a bar that goes on with the values of before
    for at, line in enumerate(lines):
        if at > MAX_ROWS:
            raise too_many_rows(path)
        bar, step, epoch = _BAR.search(line), _STEP.search(line), _EPOCH.search(line)
        if len(line) > MAX_LOG_LINE or not (bar or step or epoch):
            continue
        pairs, lost = _pairs(line)
        if line.endswith(("\n", "\r")) and not had.isdisjoint(lost):  # else it is cut off
            raise unreadable(path, repr(line.strip()[:100]), "a loss or a reward is no number")
        if any(name_of_column(name) in _TELLS for name in pairs):
            usual = set(filter(_is_known, pairs))
        elif not usual or 2 * len(usual & pairs.keys()) < len(usual):
            continue  # Megatron's row without a loss that is not finite has most of the names
        had |= pairs.keys()
        planned = int(bar[2]) if bar else None
        found = _Line(_count(bar or step), _count(epoch), pairs, bool(_ASIDE.search(line)), planned)
        if bar and last and _but_speeds(last.pairs) == _but_speeds(pairs):
            stands = found._replace(pairs={})
        else:
            stands = None
            yield found
        last = found
    if stands is not None:
        yield stands


def _count(found: re.Match[str] | None) -> int | None:
    return int(found[1]) if found else None


def _but_speeds(pairs: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in pairs.items() if not speed_of(name)}


def _pairs(line: str) -> tuple[dict[str, float | None], set[str]]:
    """The numbers in a line, and the losses and rewards in it that are none."""
    line = _SPEED.sub(r", \2=\1", line)
    pairs: dict[str, float | None] = {}
    lost = set()
    for found in chain(_PAIR.finditer(line), _PLAIN.finditer(line)):
        name = _name(line[: found.end(1)])
        try:
            name, value = _value(name, found)
        except ValueError:
            lost.add(name)
            continue
        if step_column([name]) is None and (found.re is _PAIR or _is_known(name)):
            pairs.setdefault(name, value)
    return pairs, {name for name in lost - pairs.keys() if name_of_column(name) in _LEARNED}


def _value(name: str, found: re.Match[str]) -> tuple[str, float | None]:
    """The name, which its unit is part of, and the number. Raises ValueError if it is none."""
    text, unit = measured(found[3] or "")
    unit = unit or found[2] or found[4]
    value = number(text)
    return (f"{name}_{unit.lower()}" if unit else name), None if is_rounded_zero(name, text) else value


def _name(before: str) -> str:
    """The name that ends here: the longest of the last words that is a metric's, else the last word. A word that makes
    another metric of it, as in `task loss`, is part of the name. It begins behind a number: in `loss: nan  grad_norm`,
    nan is what the loss is."""
    words = _APART.split(before)[-1].split()
    behind = (at for at in range(len(words) - 1, 0, -1) if _VALUE.match(words[at - 1]))
    words = words[next(behind, 0) :][-_WORDS:]
    while len(words) > 1 and not is_canonical(name_of_column(" ".join(words))):
        if words[0].isalpha() and not words[0].isupper():
            break
        del words[0]
    return " ".join(words)
