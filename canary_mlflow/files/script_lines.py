"""What a script prints of its own training: `epoch 1 (20/4292), loss: 0.66, lr: 1e-05`, `step 7 | loss=0.3` and the
like. No two scripts write the same, so the lines are known by what they have in common: the same names, over and over,
one of them a loss or a reward. A row may take several lines, as DeepSpeed-Chat's do."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, dropwhile, pairwise
from math import nan
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import NamedTuple

from canary_mlflow.errors import UsageError
from canary_mlflow.files.columns import Columns, unreadable
from canary_mlflow.files.from_columns import history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.limits import MAX_ROWS, too_many_rows
from canary_mlflow.files.names import is_canonical, is_rounded_zero, name_of_column, step_column
from canary_mlflow.files.numbers import BEGINS, number
from canary_mlflow.files.units import OF_VALUES, UNIT, other_unit, speed_of
from gates.model.wording import counted

# What tells of a training; also whether it goes on: a reward is one and the same in all passes over a batch.
_LEARNED = ("reward_mean", "score_mean", "loss", "policy_loss", "reward_margin")
_REWARDS = {"reward_mean", "score_mean"}
_EVALUATED = {"eval_loss", "eval_reward"}  # all that a script may say that evaluates after each epoch
LEAST = 5  # lines; fewer are a report rather than a log
_PASSES = 12  # lines of a training; epochs that begin again sooner may be PPO's passes over a batch
_NEARLY = 0.9  # of the rows: now and then a terminal mixes two lines
_LONGEST = 2000  # characters of a line
_WORDS = 3  # in a name, such as "Avg Response Len"
_BACK = 60  # characters before the last of them in which the others are looked for
_NUMBER, _UNIT = rf"({BEGINS}[^\s,|;:)\]}}]*)", rf"({UNIT}|(?:{OF_VALUES})\b)"
# What stands there instead of a number is matched too: a name that other lines have a number for.
_PAIR = re.compile(
    rf"(?<![\w/.%-])([^\W\d][\w/.%-]*)['\"]?(?: ?\({_UNIT}\))? ?[:=]\s{{0,20}}"
    rf"(?:{_NUMBER}(?: {_UNIT})?(?!\s?[:=])|(?=\S))",
    re.IGNORECASE,
)
# The same with nothing between, `iter 20: loss 2.31, time 40ms`: only in a line that says its step, and a name we know.
_PLAIN = re.compile(
    rf"(?<![\w/.%-])([^\W\d][\w/.%-]*)()\s{{1,9}}(?:{_NUMBER}|(?=[*?#<-]|none\b|n/a\b|null\b))()", re.IGNORECASE
)
_SPEED = re.compile(rf"(?<![\w/.,-])(\d[\d.]*) ?({UNIT})(?!\s*[:=\d])", re.IGNORECASE)  # a number with its unit alone
_BAR = re.compile(r"\| {0,9}(\d+)/\d+ \[")  # tqdm's count; its bar is drawn again and again with the values of before
_STEP = re.compile(r"\b(?:step|iteration|iter|update)s?\b[ :=#\[]{0,9}(\d+)", re.IGNORECASE)
_EPOCH = re.compile(r"\bepoch\b[ :=#\[]{0,3}(\d+)", re.IGNORECASE)
_ASIDE = re.compile(r"\b(?:eval|val|test)", re.IGNORECASE)
_MEASURED = re.compile(rf"(.*?\d){_UNIT}(?:\(.*)?", re.DOTALL | re.IGNORECASE)  # a value with its unit, `78.0GiB(99%)`
_VALUE = re.compile(rf"{BEGINS}|(?:none|null|n/a|\W+)$", re.IGNORECASE)
_APART = re.compile(r"""[][,|;(){}'"]| - """)  # ends what stands before a name
# Words of a name that make no other metric of it.
_PASSED = {"avg", "average", "mean", "batch", "current", "running", "training"}


class _Line(NamedTuple):
    number: int  # among the lines that say anything
    epoch: int | None
    step: int | None
    pairs: dict[str, float | None]  # None: a zero that few decimals may leave of a number
    aside: bool  # of an evaluation, by its words alone
    unread: str  # the line, if a loss or a reward in it is no number


class _Heading(NamedTuple):
    number: int  # among the lines that say a step and no metric
    step: int


def read_script_lines(path: Path, lines: Iterable[str], notes: list[str]) -> History | None:
    """The longest training of the form that occurs most often; None if no line has a loss or a reward. Raises
    UsageError if no form occurs often enough."""
    forms = _forms(path, lines)
    form = _chosen(forms)
    if not form:
        return None
    if line := next((row.unread for row in form if row.unread), ""):
        raise unreadable(path, repr(line.strip()[:100]), "a loss or a reward is no number")
    if len(form) < LEAST:
        found = f"{counted(len(form), 'printed line')} with {', '.join(form[0].pairs)[:100]}"
        raise UsageError(
            f"{path}: {found}; expected at least {LEAST} with a loss or a reward; let the script print its loss every "
            "few steps, such as `step 10 | loss: 2.31`, or train for more epochs"
        )
    form = _joined(form, forms.values())
    trainings = _trainings(form)
    longest = max(trainings, key=len)
    rows = form if len(longest) < LEAST or (len(longest) < _PASSES and _goes_on(trainings)) else longest
    notes = [*notes, f"read from {len(rows):,} lines with {', '.join(rows[0].pairs)}"[:150]]
    if len(rows) < len(form):
        notes.append(f"the longest of {len(trainings)} trainings: their epochs begin again")
    said = _steps(rows)
    steps = said or list(range(1, len(rows) + 1))
    if len(trainings) == 1:
        rows, steps = _with_others(rows, steps, bool(said), forms.values())
    columns = Columns(path, row_word="line")
    for at, (step, row) in enumerate(zip(steps, rows, strict=True), 1):
        metrics = {name: value for name, value in row.pairs.items() if step_column([name]) is None}
        columns.add({"step": step, **metrics}, at)
    return history_of(columns, "printed", notes if said else [*notes, "without steps: the lines are numbered"])


def _forms(path: Path, lines: Iterable[str]) -> dict[tuple[str, ...], list[_Line]]:
    """The lines by the names in them. What a step's heading, written again, repeats is one: each group of answers may
    begin with it and what the step had."""
    forms: dict[tuple[str, ...], list[_Line]] = {}
    headed: dict[tuple[str, ...], _Heading] = {}
    for at, (line, heading, pairs, unread) in enumerate(_telling(lines), 1):
        if at > MAX_ROWS:
            raise too_many_rows(path)
        names = tuple(pairs)
        rows, before = forms.setdefault(names, []), headed.get(names, heading)
        headed[names] = heading
        bar = _BAR.search(line)
        again = bar or (heading.step == before.step and heading.number != before.number)
        if not (again and rows and _but_speeds(rows[-1].pairs) == _but_speeds(pairs)):
            aside = bool(_ASIDE.search(line)) and not any(name_of_column(name).startswith("eval_") for name in names)
            epoch, step = _count(_EPOCH.search(line)), _count(bar or _STEP.search(line))
            rows.append(_Line(at, epoch, step, pairs, aside, line if unread else ""))
    return _alike(forms)


def _but_speeds(pairs: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in pairs.items() if not speed_of(name)}


def _alike(forms: Mapping[tuple[str, ...], list[_Line]]) -> dict[tuple[str, ...], list[_Line]]:
    """The forms that hold something we know, those taken together that hold the same of it: what else a line says may
    vary, such as litgpt's `val: n/a` until its first evaluation. Only names that all of them have are kept."""
    groups: dict[frozenset[str], list[tuple[str, ...]]] = {}
    for names in forms:
        if known := frozenset(filter(_is_known, names)):
            groups.setdefault(known, []).append(names)
    found = {}
    for group in groups.values():
        shared = tuple(name for name in group[0] if all(name in names for names in group))
        rows = sorted(row for names in group for row in forms[names])
        read = dropwhile(attrgetter("unread"), rows)  # a name that never had a number before is a word
        found[shared] = [row._replace(pairs={name: row.pairs[name] for name in shared}) for row in read]
    return {names: rows for names, rows in found.items() if rows}


def _is_known(name: str) -> bool:
    return is_canonical(name_of_column(name)) or other_unit(name) is not None


def _chosen(forms: Mapping[tuple[str, ...], list[_Line]]) -> list[_Line]:
    """The lines of the form that tells of the training; of an evaluation if none does often enough."""
    form = _usual(_of_steps(_with(set(_LEARNED), forms)))
    return form if len(form) >= LEAST else _usual(_with(_EVALUATED, forms)) or form


def _of_steps(forms: list[list[_Line]]) -> list[list[_Line]]:
    """The forms, without those that say one answer's reward and no step, where another says the reward beside more of
    a training: a log of answers is not one of steps."""
    known = [{name_of_column(name) for name in form[0].pairs if _is_known(name)} for form in forms]
    whole = [names for names, form in zip(known, forms, strict=True) if len(form) >= _PASSES]
    return [
        form
        for names, form in zip(known, forms, strict=True)
        if not (names <= _REWARDS and any(names < other for other in whole))
        or step_column(form[0].pairs)
        or _steps(form)
    ]


def _with(metrics: set[str], forms: Mapping[tuple[str, ...], list[_Line]]) -> list[list[_Line]]:
    """The forms that have one of the metrics."""
    return [rows for names, rows in forms.items() if not metrics.isdisjoint(map(name_of_column, names))]


def _usual(forms: list[list[_Line]]) -> list[_Line]:
    """The form that occurs most often, or nearly, and says its steps."""
    most = max(map(len, forms), default=0)
    usual = (form for form in forms if len(form) >= _NEARLY * most)
    return max(usual, key=lambda form: (bool(_steps(form)), len(form)), default=[])


def _count(found: re.Match[str] | None) -> int | None:
    return int(found[1]) if found else None


def _trainings(rows: list[_Line]) -> list[list[_Line]]:
    """The rows of each training: a new one begins where the epoch goes back to the first."""
    found = [rows[:1]]
    for before, row in pairwise(rows):
        if row.epoch is not None and row.epoch == rows[0].epoch and before.epoch not in (None, row.epoch):
            found.append([])
        found[-1].append(row)
    return found


def _goes_on(trainings: Sequence[list[_Line]]) -> bool:
    """Whether most of them begin where the one before ended rather than where it began, as PPO's passes over its
    batches do: then they are one."""
    names = {name_of_column(name): name for name in trainings[0][0].pairs}
    told = next((names[metric] for metric in _LEARNED if metric in names), None)
    if told in (None, names.get("policy_loss")) or len(trainings) == 1:
        return True  # a policy's loss begins at 0 in each pass
    nearer = 0
    for before, after in pairwise(trainings):
        began, ended, begins = (row.pairs[told] or 0.0 for row in (before[0], before[-1], after[0]))
        nearer += abs(begins - ended) <= abs(begins - began)
    return 2 * nearer >= len(trainings) - 1


def _telling(lines: Iterable[str]) -> Iterator[tuple[str, _Heading, dict[str, float | None], bool]]:
    """The lines with a metric that we know, each with the last heading above it, and what `_pairs` reads in it."""
    heading = _Heading(0, 0)
    for line in lines:
        if len(line) > _LONGEST:
            continue
        pairs, unread = _pairs(line)
        if any(map(_is_known, pairs)):
            yield line, heading, pairs, unread
        elif step := _STEP.search(line):
            heading = _Heading(heading.number + 1, int(step[1]))


def _joined(rows: list[_Line], forms: Iterable[list[_Line]]) -> list[_Line]:
    """The rows, with what the lines of another form say that stand beside nearly each of them, one each: below or above
    it, as the first one does."""
    numbers = [row.number for row in rows]
    for other in forms:
        above = int(other[0].number < numbers[0])
        beside = [bisect(numbers, line.number) - 1 + above for line in other]
        times = Counter(beside)
        if other[0].pairs.keys() != rows[0].pairs.keys() and list(times.values()).count(1) >= _NEARLY * len(rows):
            told = {at: line.pairs for at, line in zip(beside, other, strict=True)}
            rows = [row._replace(pairs=row.pairs | told.get(at, {})) for at, row in enumerate(rows)]
    return rows


def _with_others(
    rows: list[_Line], steps: list[int], said: bool, forms: Iterable[list[_Line]]
) -> tuple[list[_Line], list[int]]:
    """The rows and their steps, with what lines of other forms say of an evaluation: `step 250: val loss 1.5` stands
    between hundreds of lines with the loss, `epoch 0: eval_loss: 1.5` after the epoch's last. A line with most of a
    row's names and a step of its own is a row: Megatron leaves out a loss that is not finite. `said`: whether the lines
    say the steps."""
    found, numbers = list(zip(steps, rows, strict=True)), [row.number for row in rows]
    usual, had = set(filter(_is_known, rows[0].pairs)), set(steps)
    for line in (line for form in forms for line in form if line.pairs.keys() != rows[0].pairs.keys()):
        told = {name: value for name, value in line.pairs.items() if name_of_column(name).startswith("eval_")}
        step = line.step if said else None
        if step not in had and step is not None and not line.aside and 2 * len(usual & line.pairs.keys()) >= len(usual):
            told |= {name: value for name, value in line.pairs.items() if name in usual}
        if step is None and (before := bisect(numbers, line.number)):  # 0: before the first step, of no training
            step = steps[before - 1]
        if not told or step is None:
            continue
        at = bisect(found, step, key=itemgetter(0))
        if at and found[at - 1][0] == step:
            found[at - 1] = step, found[at - 1][1]._replace(pairs=found[at - 1][1].pairs | told)
        else:
            found.insert(at, (step, line._replace(pairs=told)))
    return [row for _, row in found], [step for step, _ in found]


def _steps(rows: list[_Line]) -> list[int]:
    """The steps that the lines say; none if one lacks it, or they begin again with each epoch, or say its length."""
    steps = [row.step for row in rows if row.step is not None]
    return steps if len(steps) == len(rows) and steps == sorted(steps) and steps[0] < steps[-1] else []


def _pairs(line: str) -> tuple[dict[str, float | None], bool]:
    """What a line says, and whether a loss or a reward in it, which is NaN here then, is no number at all."""
    line = _SPEED.sub(r", \2=\1", line)
    says_when = bool(_STEP.search(line) or _EPOCH.search(line))
    pairs: dict[str, float | None] = {}
    worded = []
    for found in chain(_PAIR.finditer(line), _PLAIN.finditer(line) if says_when else ()):
        try:
            name, value = _value(line, found)
        except ValueError:
            worded.append(found)
            continue
        if found.re is _PAIR or _is_known(name):
            pairs.setdefault(name, value)
    told = line.endswith(("\n", "\r")) and (says_when or any(map(_is_known, pairs)))  # else it is cut off
    lost = {name for found in worded if told and (name := _name_at(line, found)) not in pairs and _is_known(name)}
    if {*_LEARNED}.isdisjoint(map(name_of_column, lost)):
        return pairs, False
    return pairs | dict.fromkeys(lost, nan), True


def _value(line: str, found: re.Match[str]) -> tuple[str, float | None]:
    """The name, which its unit is part of, and the number. Raises ValueError if it is none."""
    text, unit = found[3] or "", found[2] or found[4]
    if measured := _MEASURED.fullmatch(text):
        text, unit = measured[1], measured[2]
    value, name = number(text), _name_at(line, found)
    return (f"{name}_{unit.lower()}" if unit else name), None if is_rounded_zero(name, text) else value


def _name_at(line: str, found: re.Match[str]) -> str:
    return _name(line[max(found.start(1) - _BACK, 0) : found.end(1)])


def _name(before: str) -> str:
    """The name that ends here, of several words perhaps: `INFO epoch 3 loss` is the loss, a `task loss` another. It
    begins behind a number: in `loss: nan  grad_norm`, nan is what the loss is."""
    words = _APART.split(before)[-1].split()
    behind = (at for at in range(len(words) - 1, 0, -1) if _VALUE.match(words[at - 1]))
    words = words[next(behind, 0) :][-_WORDS:]
    while len(words) > 1 and not is_canonical(name_of_column(" ".join(words))):
        if words[0].isalpha() and words[0].lower() not in _PASSED and not words[0].isupper():
            break
        del words[0]
    return " ".join(words)
