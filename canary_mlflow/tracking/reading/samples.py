"""Texts of a run: prompts, the model's answers, and their rewards. A small table, kept as samples.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.shown import cut
from canary_mlflow.tracking.delivery.lines import to_json

FILE = "samples.jsonl"
MOST_BYTES = 256 * 1024  # in a run's table
MOST_CHARACTERS = 2000  # in one text; a longer one is cut, and says how much is missing
KINDS = ("fixed", "best", "worst")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer at one optimizer step. Kind `fixed`: greedy, to a prompt that is asked again and again; `best` and
    `worst`: by reward, among the answers drawn for training."""

    step: int
    kind: str
    prompt: str
    answer: str
    reward: float | None = None
    length: int | None = None  # tokens
    kl: float | None = None  # from the reference, in nats, over the whole answer


class Samples:
    """Collects answers. A full table drops steps evenly, so that what is left spans the whole run."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._size = 0
        self._lines: dict[int, list[str]] = {}  # by step

    def add(self, answers: Iterable[Answer]) -> None:
        """Add the answers of one step."""
        for answer in answers:
            line = as_line(answer)
            self._lines.setdefault(answer.step, []).append(line)
            self._size += len(line.encode())
        while self._size > self._most and len(self._lines) > 1:
            self._thin()

    def text(self) -> str:
        """JSON Lines in the order of steps; "" for an empty table."""
        return "".join(line for step in sorted(self._lines) for line in self._lines[step])

    def _thin(self) -> None:
        """Drop the step whose neighbours are nearest to each other; the first and the newest stay if possible."""
        steps = sorted(self._lines)
        inner = range(1, len(steps) - 1)
        at = min(inner, key=lambda at: steps[at + 1] - steps[at - 1], default=len(steps) - 1)
        self._size -= sum(len(line.encode()) for line in self._lines.pop(steps[at]))


def as_line(answer: Answer) -> str:
    """One line of JSON."""
    row = asdict(answer) | {name: cut(getattr(answer, name), MOST_CHARACTERS) for name in ("prompt", "answer")}
    row |= {name: None if row[name] is None else to_json(row[name]) for name in ("reward", "kl")}
    return json.dumps(row) + "\n"


def read(text: str, where: str) -> list[Answer]:
    """The answers of a table. Raises UsageError for a line that is not an answer."""
    return list(_answers(text, where))


def _answers(text: str, where: str) -> Iterator[Answer]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield _answer(json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(
                f"{where}, line {number}: {error}; expected an object with step, kind, prompt and answer, as a canary "
                "writes it"
            ) from None


def _answer(row: Any) -> Answer:
    if not isinstance(row, dict):
        raise ValueError("no object")
    step, kind, prompt, answer, length = (row.get(name) for name in ("step", "kind", "prompt", "answer", "length"))
    if not isinstance(step, int) or kind not in KINDS:
        raise ValueError("no step, or no kind that is known")
    if not isinstance(prompt, str) or not isinstance(answer, str):
        raise ValueError("no texts")
    reward, kl = (None if row.get(name) is None else float(row[name]) for name in ("reward", "kl"))
    return Answer(
        step=step, kind=kind, prompt=prompt, answer=answer, reward=reward, kl=kl,
        length=length if isinstance(length, int) else None,
    )  # fmt: skip
