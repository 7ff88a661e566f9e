"""What a session is called: by what was changed since what it was compared with; and what it comes to, in a sentence.

Both are made of the verdict alone, so that lists need read nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from canary_mlflow.gates.facts.check import CODE, CONFIGURATION, DATA, HARDWARE, PACKAGES, SCRIPT, WORKLOAD, missing
from canary_mlflow.gates.model.metrics import label
from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.sides import ABSENT
from canary_mlflow.gates.model.verdict import Check, CheckOutcome, Difference, Outcome, Standing, Verdict
from canary_mlflow.gates.model.wording import counted, percent, quantity, sentence_case
from canary_mlflow.reports.decision import Decision
from canary_mlflow.reports.differences import NUMBERS, differing, explaining
from canary_mlflow.reports.rows import gains, standing

SHORT: Mapping[str, str] = {
    "learning_rate": "lr",
    "per_device_train_batch_size": "batch size",
    "num_train_epochs": "epochs",
    "init_kl_coef": "KL coefficient",
}
"""What people call a setting; a search knows both names."""
ORDER = (CONFIGURATION, PACKAGES, CODE, DATA, WORKLOAD, HARDWARE)
"""Of what was changed, what is named first if nothing tells more: somebody meant it."""
FAULT = "fault."
LONGEST = 24  # characters of a value
TITLE = 48  # characters of a commit's title
UNCHANGED, UNRECORDED = "unchanged", "no recorded change"
_BESIDE = re.compile(r" \(\d+ commits?[^)]*\)")  # how many commits lie between


def changes(verdict: Verdict) -> list[Difference]:
    """What was changed, that which explains most first: a fault, then what the facts that differ may come from, then by
    group; what both sides have before what only one has."""
    found = [one for one in verdict.differences if one.group in ORDER and not one.rounding]
    if any(one.key == f"{FAULT}name" for one in found):  # its other settings say how it was made
        found = [one for one in found if one.key == f"{FAULT}name" or not one.key.startswith(FAULT)]
    causes = [cause for fact in differing(verdict.differences) for cause in explaining(fact, verdict.differences)]

    def place(one: Difference) -> tuple[bool, bool, int, bool, bool]:
        trains = one.group != PACKAGES or one.key in NUMBERS[0]
        there = ABSENT in (one.baseline, one.candidate)
        return not one.key.startswith(FAULT), one not in causes, ORDER.index(one.group), not trains, there

    return sorted(found, key=place)


def name(verdict: Verdict) -> str:
    """`lr 0.03 → 0.3`, `trl 1.15 → 1.16 +2`, `unchanged`; '' if nobody knows."""
    found = changes(verdict)
    if found:
        return f"{said(found[0])}{f' +{len(found) - 1}' if len(found) > 1 else ''}"
    if not verdict.baseline_runs or not {CONFIGURATION, CODE, PACKAGES} & set(verdict.compared):
        return ""
    return UNRECORDED if differing(verdict.differences) or missing([*verdict.compared, WORKLOAD]) else UNCHANGED


def said(one: Difference) -> str:
    """A change in few words: `lr 0.03 → 0.3`, `commit 4e5f6a7: shorter prompts`, `fault nan_batch`."""
    if one.group == CODE:
        if one.key == SCRIPT:
            return f"{one.candidate.partition(' ')[0]} edited"
        commit = f"commit {_BESIDE.sub('', one.candidate)}"
        return "uncommitted edits" if one.key != "commit" else commit[: TITLE - 1] + "…" * (len(commit) >= TITLE)
    before, now = (figure(value) for value in (one.baseline, one.candidate))
    if one.key == f"{FAULT}name":
        return f"fault {now}" if before in ("none", ABSENT) else f"fault {before} → {now}"
    while one.group == PACKAGES and before.endswith(".0") and now.endswith(".0"):
        before, now = before.removesuffix(".0"), now.removesuffix(".0")
    return f"{setting(one.key)} {before} → {now}"


def setting(key: str) -> str:
    """`lr` of train.learning_rate, `data` of data.name."""
    own = key.removesuffix(".name").rpartition(".")[2]
    return SHORT.get(own, own.replace("_", " "))


def figure(value: str) -> str:
    """A value, a number in its shortest form, a long text cut."""
    try:
        short = f"{float(value):g}"
    except ValueError:
        return value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"
    return short if len(short) < len(value) and "." in value else value


# ---- what it comes to ------------------------------------------------------------------------------------------------


def headline(decision: Decision) -> str:
    """What it comes to, for somebody who knows no metric: `v4: trl 1.15 → 1.16 made the evaluation loss 22 % worse`;
    without a version, only that."""
    subject = f"v{decision.version}: " if decision.version and not decision.candidate_label else ""
    said = story(decision)
    return f"{subject}{said}" if subject else sentence_case(said)


def story(decision: Decision) -> str:
    """What a change did, or what is not known of it, as a clause."""
    verdict = decision.verdict
    found, check = changes(verdict), decisive(verdict)
    if decision.bootstrapped:
        return "the first champion, compared with nothing"
    if len(found) == 1 and (gained := gains(verdict)):
        return f"{_doer(found[0])} {effect(gained[0], did=True)}"
    if check is None or verdict.outcome is Outcome.PASS:
        known = f"with {said(found[0])}{_more(found)}, " if found else f"{name(verdict)}, and " if name(verdict) else ""
        return f"{known}{'no worse than the baseline' if check else verdict.reason.rstrip('.')}"
    if check.role is Role.HARD and verdict.outcome is not Outcome.BLOCK:
        return effect(check, did=False)
    if len(found) == 1 and verdict.outcome is Outcome.BLOCK and check.evidence is not None:
        return f"{_doer(found[0])} {effect(check, did=True)}"
    known = f"{said(found[0])}{_more(found)}" if found else name(verdict)
    harmful = standing(decision, check) is not Standing.OPEN
    doubt = ", but that is not sure yet" if harmful and verdict.outcome is Outcome.INCONCLUSIVE else ""
    return f"{effect(check, did=False, harmful=harmful)}{doubt}{f', with {known}' if known else ''}"


def decisive(verdict: Verdict) -> Check | None:
    """The check that a verdict rests on first; of a PASS, the first metric that may decide."""
    passed = verdict.outcome is Outcome.PASS
    roles = (Role.GATE,) if passed else (Role.HARD, Role.GATE, Role.GUARD)
    return next((one for one in verdict.checks if one.outcome.value == verdict.outcome and one.role in roles), None)


def effect(check: Check, *, did: bool, harmful: bool = False) -> str:
    """What was found: `the evaluation loss is 22 % worse`, `the KL went from 5.9 to 70`, else the check's own reason,
    without for how many runs. `did`: as what something did, `made the evaluation loss 22 % worse`. `harmful`: whether
    the whole range of an open change is harm."""
    found, what = check.evidence, label(check.metric)
    if found is not None and found.items:
        what = check.metric  # a benchmark's own name
    elif what[:1].islower():  # not KL
        what = f"the {what}"
    if found is None or found.change is None or found.baseline is None or found.candidate is None:
        return check.reason.partition(" runs: ")[2] or check.reason
    if check.outcome is CheckOutcome.INCONCLUSIVE and not harmful:
        return f"it is open whether {what} is worse"
    if found.relative and abs(found.change) < 2:
        how = f"{percent(abs(found.change))} {'better' if check.outcome is CheckOutcome.PASS else 'worse'}"
        return f"made {what} {how}" if did else f"{what} is {how}"
    ends = f"from {quantity(found.baseline, found.unit)} to {quantity(found.candidate, found.unit)}"
    return f"took {what} {ends}" if did else f"{what} went {ends}"


def _more(found: Sequence[Difference]) -> str:
    return f" and {counted(len(found) - 1, 'more change')}" if len(found) > 1 else ""


def _doer(one: Difference) -> str:
    """A setting with how many times as much it is, if that is a round number; else as in the name."""
    try:
        times = float(one.candidate) / float(one.baseline)
    except (ValueError, ZeroDivisionError):
        return said(one)
    plain = one.key.rpartition(".")[2].replace("_", " ")
    for ratio, sign in ((times, "×"), (1 / times if times else 0.0, "÷")):  # noqa: RUF001
        if ratio >= 2 and float(f"{ratio:.3g}") == float(f"{ratio:.6g}"):
            return f"{plain} {sign} {ratio:.3g}"
    return said(one)
