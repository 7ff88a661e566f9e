"""The work of a step on both sides: whether it is identical or differs, immaterially or materially, and in what.
Advisory: less work is not yet speed, and identical work is no PASS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from canary_mlflow.gates.model.records import Run

WORK = "work."
COUNTS = {"flops": 0.005, "traffic": 0.005, "tensors": 0.005, "allocated": 0.01}
"""By more than this share they are material; counts have no noise, views and names are no work."""
CALLS = "calls."
"""How the numbers of single operations begin, views left out."""
MOST_CALLS = 3  # operations that are named
SHOWN = 4  # differences that a sentence names
IDENTICAL, IMMATERIAL, MATERIAL = "identical", "immaterial", "material"


@dataclass(frozen=True, kw_only=True)
class WorkDiff:
    """`kind`: identical, immaterial, material, or '' if the two do not compare. `said`: what differs, the most telling
    first."""

    kind: str
    said: tuple[str, ...] = ()


def compare_work(before: Mapping[str, str], now: Mapping[str, str]) -> WorkDiff:
    """Compare two runs' facts `work.*`. They compare only if both used one fixture, or made it of the same rows: other
    data is other work."""
    here, there = (_own(facts) for facts in (before, now))
    if here.get("status") != "counted" or there.get("status") != "counted" or not _one_fixture(here, there):
        return WorkDiff(kind="")
    if here["shapes"] == there["shapes"]:
        return WorkDiff(kind=IDENTICAL)
    causes, counts = list(_causes(here, there)), _counts(here, there)
    if counts and not causes:
        causes = list(_calls(here, there))
    return WorkDiff(kind=MATERIAL if causes or counts else IMMATERIAL, said=(*causes, *counts))


def comparable(before: Sequence[Run], now: Sequence[Run]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The facts of the first two runs whose work compares; empty if there are none."""
    pairs = ((here.facts, there.facts) for here, there in product(before, now))
    return next((pair for pair in pairs if compare_work(*pair).kind), ({}, {}))


def _one_fixture(here: Mapping[str, str], there: Mapping[str, str]) -> bool:
    """The same batch; or the same rows, which one side pads or masks in another way."""
    return here["fixture"] == there["fixture"] or (bool(here.get("rows")) and here.get("rows") == there.get("rows"))


def beyond(before: Mapping[str, str], now: Mapping[str, str], budget: Mapping[str, float]) -> list[str]:
    """The counts that grew by more than their share of the budget, as in `{"flops": 0.1}`; empty if the two do not
    compare."""
    if not compare_work(before, now).kind:
        return []
    here, there = (_own(facts) for facts in (before, now))
    grown = {name: _grown(here, there, name) for name in budget}
    return [f"{name} {100 * grown[name]:+.1f} %, limit {100 * limit:+.0f} %"
            for name, limit in budget.items() if grown[name] > limit]  # fmt: skip


def _own(facts: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(WORK): value for key, value in facts.items() if key.startswith(WORK)}


def _causes(here: Mapping[str, str], there: Mapping[str, str]) -> Sequence[str]:
    """What differs in kind, with file and line."""
    found = []
    again = _number(there, "ops.recompute") - _number(here, "ops.recompute")
    if again:
        verb = "recomputes" if again > 0 else "no longer recomputes"
        found.append(f"{verb} {abs(again)} operations in the backward pass (gradient checkpointing)")
    more = _number(there, "flops.nograd") - _number(here, "flops.nograd")
    if more and here.get("flops.forward") == there.get("flops.forward"):
        found.append(f"{'one more' if more > 0 else 'one less'} forward pass without gradients ({abs(more):.3g} FLOPs)")
    elif more < 0 and _number(there, "flops.forward") > _number(here, "flops.forward"):
        found.append("a frozen forward pass now records gradients")
    if here.get("attention") != there.get("attention"):
        found.append(f"attention {here.get('attention')} → {there.get('attention')}")
    found += _optimizer(here, there)
    for key in sorted({key for key in (*here, *there) if key.startswith("site.") and key != "site.scratch"}):
        found += [f"{key.removeprefix('site.')}: {moved}" for moved in _moved(here.get(key, ""), there.get(key, ""))]
    if here["sequence"] == there["sequence"] and here["flops"] != there["flops"]:
        found.append("the same operations on other shapes: padding, batch, or rank")
    if _grown(here, there, "allocated") > COUNTS["allocated"] and here.get("site.scratch") != there.get("site.scratch"):
        found.append(f"scratch memory: {_short(there.get('site.scratch'))}")
    return found


def _optimizer(here: Mapping[str, str], there: Mapping[str, str]) -> Sequence[str]:
    """Another implementation of the optimizer, if nothing else differs."""
    phases = {key for key in (*here, *there) if key.startswith("ops.")}
    if {key for key in phases if here.get(key) != there.get(key)} != {"ops.optimizer"}:
        return []
    return [f"the optimizer's step: {here.get('ops.optimizer', 0)} → {there.get('ops.optimizer', 0)} operations"]


def _calls(here: Mapping[str, str], there: Mapping[str, str]) -> Sequence[str]:
    """The operations whose number changed most, where nothing says more."""
    names = {key for key in (*here, *there) if key.startswith(CALLS)}
    apart = {name.removeprefix(CALLS): _number(there, name) - _number(here, name) for name in names}
    most = sorted((name for name in apart if apart[name]), key=lambda name: (-abs(apart[name]), name))
    return [f"{name}: {abs(apart[name])} {'more' if apart[name] > 0 else 'less'}" for name in most[:MOST_CALLS]]


def _moved(before: str, now: str) -> Sequence[str]:
    """`1 more at trl/trainer/utils.py:12` for each file whose number changed. Counted by file, as lines move with every
    release."""
    counts = [_by_file(side) for side in (before, now)]
    apart = {file: counts[1].get(file, 0) - counts[0].get(file, 0) for file in sorted({*counts[0], *counts[1]})}
    old = {one.partition(" at ")[2] for one in before.split("; ")}
    found = []
    for file, more in apart.items():
        places = [one.partition(" at ")[2] for one in (now if more > 0 else before).split("; ")]
        place = next((one for one in places if one.startswith(f"{file}:") and (more < 0 or one not in old)), file)
        found += [f"{abs(more)} {'more' if more > 0 else 'less'} at {place}"] if more else []
    return found


def _by_file(places: str) -> dict[str, int]:
    found: dict[str, int] = {}
    whole, cut, _ = places.partition("…")  # of what did not fit into a tag the last place is no whole one
    for one in filter(None, whole.split("; ")[: -1 if cut else None]):
        number, _, place = one.partition(" at ")
        file = place.rpartition(":")[0] or place
        found[file] = found.get(file, 0) + (int(number) if number.isdigit() else 0)
    return found


def _counts(here: Mapping[str, str], there: Mapping[str, str]) -> Sequence[str]:
    grown = {name: _grown(here, there, name) for name in COUNTS}
    return [f"{name} {100 * by:+.1f} %" for name, by in grown.items() if abs(by) > COUNTS[name]]


def _grown(here: Mapping[str, str], there: Mapping[str, str], name: str) -> float:
    return int(there[name]) / max(1, int(here[name])) - 1.0


def _number(facts: Mapping[str, str], key: str) -> int:
    return int(facts.get(key, "0"))


def _short(value: str | None) -> str:
    return "none" if value is None else value if len(value) <= 80 else f"{value[:79]}…"


def work_note(before: Sequence[Run], now: Sequence[Run], *, explained: bool) -> str:
    """A sentence on the work of both sides; '' if it is not known. `explained`: no time and no memory decided the
    verdict, so equal work needs no sentence."""
    found = compare_work(*comparable(before, now))
    if found.kind == MATERIAL:
        return f"work of a step: material change: {'; '.join(found.said[:SHOWN])}"
    if explained or not found.kind:
        return ""
    if found.kind == IMMATERIAL:
        return "work of a step: the same but for views and names"
    return (
        "work of a step: identical, so that no operation explains it; look at Python, data loading, kernels and clocks"
    )
