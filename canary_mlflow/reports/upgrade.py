"""What an upgrade would do, as lines: the verdict first, then the package, the release, and what to set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canary_mlflow.gates.facts.check import said
from canary_mlflow.gates.facts.exact import bare, ends_a_text
from canary_mlflow.gates.model.verdict import Difference
from canary_mlflow.gates.model.wording import counted, listed
from canary_mlflow.reports.differences import differing
from canary_mlflow.upgrading.outcome import Culprit, Default, PackageSets, Upgrade
from canary_mlflow.upgrading.run_comparison import LOGGED
from canary_mlflow.upgrading.upgrade import likeliest

SHOWN = 5
COST = "It says nothing about cost: run canary ab in a checkout, or gate sessions of your own script."
COURSES = ("loss", "grad_norm")
"""Values whose first steps are facts, and whose course is compared too."""


def lines(found: Upgrade) -> Iterator[str]:
    """The report for people: what changed, which package does it, and what to do, before everything else."""
    flipped = {default.key for default in found.defaults}
    others = [one for one in differing(found.finding.differences) if not one.decides and one.key not in flipped]
    yield f"{found.outcome}  {_headline(found, others)}"
    if found.outcome == "BLOCK":
        yield f"  To do: {advice(found)}."
    told = clauses(found)
    for clause in told[1:SHOWN]:
        yield f"  BLOCK {clause}"
    if len(told) > SHOWN:
        yield f"  and {len(told) - SHOWN} more"
    if found.culprit is not None:
        yield f"  {explained(found.culprit)}"
        if rest := found.culprit.unexplained:
            left = listed(rest, SHOWN, clauses=True)
            yield f"  Not with that alone, so that another package has a part in it: {left}."
    if len(found.changes) > 1 and found.outcome != "PASS":
        yield f"  Moved: {_changes(found)}."
    yield from _defaults(found.defaults)
    if others:
        yield f"  Also differs: {listed([*map(said, others)], SHOWN, clauses=True)}."
    if found.finding.besides:
        yield f"  Logged or saved otherwise: {'; '.join(found.finding.besides[:SHOWN])}."
    if found.finding.work:
        yield f"  Work of a step: {'; '.join(found.finding.work[:SHOWN])}."
    if not found.changes:
        yield "  Nothing to do: these packages are at hand already; no environment was built and nothing was tried."
    elif found.outcome == "PASS":
        yield f"  Every exact fact is equal, or differs by rounding alone. {COST}"
    elif found.outcome == "INCONCLUSIVE" and not found.finding.open:
        yield f"  No fact that differs is harm by itself. {COST}"
    if found.probes:
        yield f"  {spent(found)}."


def _headline(found: Upgrade, others: Sequence[Difference]) -> str:
    """`trl 1.14.2 → 1.15.0: first loss 0.6931 → 2.773 (4 times)`: the culprit, or else the likeliest."""
    finding, culprit = found.finding, found.culprit
    moved = culprit.moves if culprit else likeliest(finding, found.changes)
    first = [*clauses(found), *([f"not comparable, {finding.open}"] if finding.open else []),
             *(said(one) for one in others if ends_a_text(one.key)),
             *(f"default flipped, {one.key} {one.before} → {one.now}" for one in found.defaults), *map(said, others),
             *finding.besides, *finding.work]  # fmt: skip
    if not first or found.outcome == "PASS":
        return _changes(found)
    return f"{listed([*map(str, moved)], SHOWN if culprit else 1) or 'nothing moves'}: {first[0]}"


def clauses(found: Upgrade) -> list[str]:
    """What blocks, each once: of a loss, the first step that differs, be it told as a fact or of its course."""
    told: dict[str, str] = {}
    for one in found.finding.symptoms:
        name = next(
            (name for name in COURSES if bare(one.key).startswith((f"first.{name}.", f"{LOGGED}{name}"))), one.key
        )
        told.setdefault(name, one.said)
    return [*told.values()]


def advice(found: Upgrade) -> str:
    """What to do about what blocks: the old default, the release that is fine, or the last one that was."""
    culprit = found.culprit
    moves = culprit.moves if culprit else found.changes
    guilty = ", ".join(f"{one.name}={one.before}" for one in found.defaults if one.explains)
    ways = [f"set {guilty}, as it was by default"] if guilty else []
    if culprit is None and len(moves) != 1:
        return listed([*ways, "leave out --no-bisect to learn which package it is"], SHOWN, clauses=True)
    if culprit and culprit.fixed_in and culprit.fixed_in != culprit.moves[0].before:
        ways.append(f"move {culprit.packages[0].name} to {culprit.fixed_in} instead, which is fine")
    kept = [f"{one.name}=={one.before}" for one in moves if one.before]
    new = [one.name for one in moves if not one.before]
    back = [*([f"keep {', '.join(kept)}"] if kept else []), *([f"leave out {', '.join(new)}"] if new else [])]
    return "; or ".join([*ways, " and ".join(back)])


def spent(found: Upgrade) -> str:
    """`4 trainings, 1.9 minutes (1 kept from before); 3 environments built in 0.4 minutes, 1 reused`"""
    kept, made = sum(bool(one.get("known")) for one in found.probes), found.environments
    before = f" ({kept} kept from before)" if kept else ""
    return (
        f"{counted(len(found.probes), 'training')}, {found.seconds / 60:.1f} minutes{before}; "
        f"{counted(made.built, 'environment')} built in {made.seconds / 60:.1f} minutes, {made.reused} reused"
    )


def explained(culprit: Culprit) -> str:
    """`trl 1.14.2 → 1.15.0 explains it; 1.16.0 is fine.`"""
    if len(culprit.packages) > 1:
        return f"Together they explain it: {', '.join(map(str, culprit.packages))}."
    (package,) = culprit.packages
    needs = f", with {', '.join(map(str, culprit.needs))}, which it needs" if culprit.needs else ""
    if not culprit.release:
        return f"{package} explains it{needs}."
    skipped = f" ({', '.join(culprit.skipped)} between could not be tried)" if culprit.skipped else ""
    fixed = f"; {culprit.fixed_in} is fine" if culprit.fixed_in else ""
    return f"{package.name} {culprit.good_release} → {culprit.release} explains it{needs}{skipped}{fixed}."


def _defaults(defaults: Sequence[Default]) -> Iterator[str]:
    """The first changed defaults, those that explain it before all others, and how many more there are."""
    word = {True: "it explains it", False: "it does not explain it", None: "not tried"}
    for one in sorted(defaults, key=lambda one: not one.explains)[:SHOWN]:
        yield f"  Default flipped: {one.key} {one.before} → {one.now} ({word[one.explains]})."
    if len(defaults) > SHOWN:
        yield f"  and {len(defaults) - SHOWN} more defaults"


def planned(plan: PackageSets, minutes: float, there: int) -> Iterator[str]:
    """What a dry run says. `minutes`: for one environment. `there`: environments that already exist."""
    if not plan.changes:
        yield "Nothing to do: these packages are at hand already; no environment and no training."
        return
    yield f"{counted(len(plan.changes), 'package')} would move: {', '.join(map(str, plan.changes))}"
    probes = 2 + most_probes(len(plan.changes))
    yield (
        f"2 environments first ({there} of them there already), about {2 * minutes:.0f} minutes; if it blocks up to "
        f"{probes} in all, about {probes * minutes:.0f} minutes."
    )


def most_probes(changes: int) -> int:
    """About how many environments a search over `changes` packages, and then over the releases of one, tries."""
    return 1 + 2 * max(0, (changes - 1).bit_length()) + 5


def _changes(found: Upgrade) -> str:
    return listed([*map(str, found.changes)], SHOWN) or "nothing moves"
