"""What is removed and what is kept, by model: one line for all that have the same reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from canary_mlflow.gates.model.wording import counted, listed

if TYPE_CHECKING:
    from canary_mlflow.registry.pruning.pruning import Fate

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
SHOWN = 12  # versions that a line names


def lines(fates: Sequence[Fate], *, done: bool) -> Iterator[str]:
    """The table, and the total size."""
    for model, its in groupby(fates, key=lambda fate: fate.model):
        yield model
        yield from table(list(its), done=done)
    going = [fate for fate in fates if fate.goes]
    size = amount(sum(fate.bytes for fate in going))
    files = counted(sum(fate.files for fate in going), "file")
    if not going:
        yield "Nothing to remove."
    elif done:
        yield f"{size} in {files} removed."
    else:
        yield f"{size} in {files} would go. Nothing was changed; to remove them: the same command with --yes"


def table(fates: Sequence[Fate], *, done: bool) -> Iterator[str]:
    """The lines of one model, those to be removed first."""
    word = {True: "gone" if done else "goes", False: "stays"}
    groups: dict[tuple[bool, str], list[Fate]] = {}
    for fate in fates:
        groups.setdefault((fate.goes, fate.why), []).append(fate)
    rows = [
        (word[goes], named(its), amount(sum(one.bytes for one in its)) if goes else "", why)
        for (goes, why), its in sorted(groups.items(), key=lambda item: not item[0][0])
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    for state, which, size, why in rows:
        yield f"  {state:<{widths[0]}}  {which:<{widths[1]}}  {size:>{widths[2]}}  {why}".rstrip()


def named(fates: Sequence[Fate]) -> str:
    """`version 3`, `versions 3, 5`."""
    numbers = sorted((fate.version for fate in fates), key=int)
    return f"version{'s' if len(numbers) > 1 else ''} {listed(numbers, most=SHOWN)}"


def amount(size: float) -> str:
    """`1.2 MiB`."""
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
