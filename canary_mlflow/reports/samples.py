"""Samples as lines for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from canary_mlflow.shown import visible

if TYPE_CHECKING:
    from canary_mlflow.registry.artifacts import Sampled
    from canary_mlflow.tracking.reading.samples import Answer

SHORT = 200  # characters of a text


def lines(found: Sampled, *, full: bool = False) -> Iterator[str]:
    """Fixed prompts with their answers over time and the champion's last one; then the best and the worst."""
    most = 10**9 if full else SHORT
    beside = f", champion's run {found.champion_run}" if found.champion_run else ", no samples of a champion"
    yield f"run {found.run_id}{beside}"
    theirs = {one.prompt: one for one in found.champion if one.kind == "fixed"}  # the last of each
    fixed = [one for one in found.answers if one.kind == "fixed"]
    for prompt in dict.fromkeys(one.prompt for one in fixed):
        yield ""
        yield f"prompt    {visible(prompt, most=most)}"
        own = [one for one in fixed if one.prompt == prompt]
        for one in own if full else _spread(own):
            yield _line(f"step {one.step}", one, most)
        if prompt in theirs:
            yield _line("champion", theirs[prompt], most)
    for kind in ("best", "worst"):
        yield from _drawn(found, kind, most)


def _drawn(found: Sampled, kind: str, most: int) -> Iterator[str]:
    """The answers of this kind at the last step that has some, and the champion's."""
    for name, answers in (("", found.answers), ("champion ", found.champion)):
        some = [one for one in answers if one.kind == kind]
        for one in (one for one in some if one.step == some[-1].step):
            yield ""
            yield f"{name}{kind}, step {one.step}: {visible(one.prompt, most=most)}"
            yield _line("answer", one, most)


def _line(name: str, one: Answer, most: int) -> str:
    numbers = [f"reward {one.reward:.4g}"] if one.reward is not None else []
    numbers += [f"{one.length} tokens"] if one.length is not None else []
    numbers += [f"KL {one.kl:.3g}"] if one.kl is not None else []
    return f"  {name:9} {visible(one.answer, most=most)}" + (f"   ({', '.join(numbers)})" if numbers else "")


def _spread(answers: list[Answer]) -> list[Answer]:
    """The first, middle and last answers."""
    return [answers[at] for at in sorted({0, len(answers) // 2, len(answers) - 1})]


def as_dict(found: Sampled) -> dict[str, Any]:
    """Everything, with the names of samples.jsonl."""
    return {
        "run": found.run_id,
        "answers": [asdict(one) for one in found.answers],
        "champion_run": found.champion_run or None,
        "champion": [asdict(one) for one in found.champion],
    }
