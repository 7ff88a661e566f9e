"""What a reader should do after a verdict, and where in MLflow's UI to look."""

from __future__ import annotations

import re
import shlex
from urllib.parse import quote

from canary_mlflow.reports.decision import SLOW_DRIFT, Decision, HeldBy, Question
from canary_mlflow.reports.meanings import standing
from canary_mlflow.reports.more_runs import (
    champion_is_short,
    have,
    more_runs,
    no_number,
    noise,
    plan_reaches,
    seeds,
    top_up_command,
)
from gates.evidence.readings import TOO_SHORT
from gates.facts.exact import FACTS
from gates.model.verdict import CheckOutcome, Outcome, ReasonCode, Standing
from gates.model.wording import sentence_case

BROKEN = (
    "See what ended it. If the code raised, fix it and run again; otherwise a run of the same seed that finishes takes "
    "its place."
)
ALIKE = "Train longer, or fix what the baseline fails too: as it is, this canary cannot tell the two apart."
NOISY = "Train longer, on larger batches or with evaluations on the way: as it is, noise hides whether it learns."
QUIETER = "Run it again while the machine is quiet; the reason names what disturbed the clocks."
FACTS_DIFFER = (
    "See whether what differs is meant; canary diff lists it; the smoke tier tells what it costs and what is learned."
)
WITHOUT_VERSION = {
    ReasonCode.BROKEN_OFF: BROKEN,
    ReasonCode.FAILS_ALIKE: ALIKE,
    ReasonCode.NOT_COMPARABLE: "Compare like with like.",
    ReasonCode.FACTS_DIFFER: FACTS_DIFFER,
    ReasonCode.MISSING_DATA: "Give what is missing (a run, a metric, more rows), then judge again.",
    ReasonCode.SUSPECT_DATA: "Fix or leave out what the reason names, then judge again.",
    ReasonCode.INVALID_ENVIRONMENT: QUIETER,
}
"""What would turn an open question into an answer, where no version waits for it."""


def next_step(decision: Decision) -> str:
    """What has happened to the champion, and what to do now."""
    return f"{clear_harm(decision)}{after(decision)}"


def clear_harm(decision: Decision) -> str:
    """What to do first if an INCONCLUSIVE shows harm beyond the limit, and a space; '' for nothing."""
    if decision.verdict.outcome is not Outcome.INCONCLUSIVE:
        return ""
    open_ones = [check for check in decision.verdict.checks if check.outcome is CheckOutcome.INCONCLUSIVE]
    worse = [check.metric for check in open_ones if standing(decision, check) is Standing.BEYOND]
    return (
        f"Worse beyond the limit: {', '.join(worse)}; look at what changed before you make more runs. " if worse else ""
    )


def after(decision: Decision) -> str:
    """`next_step` without `clear_harm`."""
    if decision.question is Question.COMPARISON:
        return f"{after_comparison(decision)}Read-only: nothing was written and no champion moved."
    if decision.question is Question.REVISIONS:
        return after_revisions(decision)
    if decision.question is Question.SESSION:
        return after_session(decision)
    if decision.question is Question.CHANGE:
        return after_change(decision)
    if decision.question is Question.FILES:
        return after_files(decision)
    outcome = decision.verdict.outcome
    if words := held_back(decision):
        return f"{words}{dry(decision)}"
    if decision.bootstrapped or outcome is Outcome.PASS:
        return after_promotion(decision)
    if decision.verdict.reason_code is ReasonCode.NO_BASELINE:
        return (
            f"Version {decision.version} stays a candidate: this policy makes no first champion by itself (bootstrap: "
            f"manual). To do it by hand: {bless_command(decision)}{dry(decision)}"
        )
    if outcome is Outcome.BLOCK:
        return after_block(decision)
    return f"{champion_stays(decision)} {more_evidence(decision)}{dry(decision)}"


def held_back(decision: Decision) -> str:
    """What keeps a version from being promoted although its verdict would allow it, or whatever its verdict; '' if
    nothing does."""
    number, stays = decision.version, champion_stays(decision)
    if load := decision.hold(HeldBy.LOAD):
        never = "it is judged and shown, never promoted and never a baseline"
        return f"{stays} Version {number} stays out: {load.reason}, so {never}. Train it again without."
    short = decision.hold(HeldBy.RUNS)
    if hold := decision.hold(HeldBy.SHORT):
        again = f"{longer(decision, 'train longer')}, or choose it all the same: {bless_command(decision)}"
        return f"{stays} Version {number} is not promoted: {hold.reason}. {again}"
    if hold := decision.hold(HeldBy.UNCHECKED):
        again = "gate it where torch and its base model are, or choose it all the same"
        return f"{stays} Version {number} is not promoted: {hold.reason}. To go on, {again}: {bless_command(decision)}"
    code = None if decision.verdict.outcome is Outcome.BLOCK else decision.hold(HeldBy.CODE)
    if not decision.holds or not (decision.good or short or code):
        return ""
    held = f"{stays} Version {number} is not promoted: {decision.holds[0].reason}."
    if decision.hold(HeldBy.OLDER):
        return f"{held} To promote it all the same: {promote_command(decision)}"
    if short is None or short.runs is None:
        return held
    again = f"train it again with {seeds(decision, short.runs) if decision.own_script else f'repeats={short.runs}'}."
    if decision.own_script or not plan_reaches(decision.verdict, short.runs):
        return f"{held} {sentence_case(again)}"
    return f"{held} Add them: {top_up_command(decision)}{over_newer(decision)}, or {again}"


def over_newer(decision: Decision) -> str:
    """The option that a command also needs if the champion is the newer version, with a space before it."""
    number, before = decision.version, decision.champion_before
    return " --promote" if number and before and int(number) < int(before) else ""


def after_promotion(decision: Decision) -> str:
    """The next step after PASS or bootstrap."""
    if decision.dry_run:
        return f"Dry run, nothing was written: without --dry-run, version {decision.version} would be champion now."
    before = f" (before: version {decision.champion_before})" if decision.champion_before else ""
    load = f"Load it as models:/{decision.model}@champion"
    if decision.evidence_only:
        load = "It is evidence only: there are no weights to load."
    return f"Version {decision.version} is champion now{before}. {load}"


def after_block(decision: Decision) -> str:
    """The next step after BLOCK of a version."""
    anchored = ""
    if decision.verdict.reason.startswith(SLOW_DRIFT):
        anchored = f", and so that the next ones are not held to the old anchor: {anchor_command(decision)}"
    meant = f"{bless_command(decision)} --despite-block{anchored}"
    if [check.metric for check in decision.verdict.checks if check.outcome is CheckOutcome.BLOCK] == [FACTS]:
        meant = f"{accept_command(decision)}, then gate it again"
    return (
        f"{champion_stays(decision)} Fix what is marked BLOCK and run again; if the change is meant: "
        f"{meant}{dry(decision)}"
    )


def after_session(decision: Decision) -> str:
    """The next step after a session that left no version."""
    what = (
        "Look at the runs that failed" if decision.verdict.outcome is Outcome.BLOCK else "See why its runs ended early"
    )
    stays = champion_stays(decision)
    return f"No version was registered. {stays} {what} (open them as below), fix the cause and run again."


def after_change(decision: Decision) -> str:
    """The next step after a session that was only judged (register=false)."""
    done = "Judged only (register=false): no version was registered."
    verdict = decision.verdict
    if decision.champion_before is None:
        return f"{done} There is no champion to compare with; a session with register=true makes the first."
    if verdict.outcome is Outcome.BLOCK:
        return f"{done} {champion_stays(decision)} Fix what is marked BLOCK and run again."
    if verdict.reason_code is ReasonCode.INVALID_ENVIRONMENT:
        return f"{done} {champion_stays(decision)} {QUIETER}"
    if verdict.outcome is Outcome.INCONCLUSIVE and verdict.more_runs:
        needed = verdict.more_runs
        words = champion_is_short(decision, needed) or f"About {needed} runs per side would decide: repeats={needed}"
        return f"{done} {champion_stays(decision)} {words}"
    return f"{done} {champion_stays(decision)}"


def after_comparison(decision: Decision) -> str:
    """What would turn an open question into an answer, and a space; '' for a decision."""
    verdict = decision.verdict
    if verdict.outcome is Outcome.BLOCK:
        return "Look at what is marked BLOCK. "
    if verdict.outcome is Outcome.PASS:
        return ""
    if found := WITHOUT_VERSION.get(verdict.reason_code):
        return f"{found} "
    if verdict.more_runs:
        return f"About {verdict.more_runs} runs per side would decide (now {have(verdict)}). "
    return f"{no_number(verdict.reason_code)}. "


def after_files(decision: Decision) -> str:
    """What would turn an open question about judged files into an answer."""
    verdict = decision.verdict
    if verdict.outcome is Outcome.BLOCK:
        return "Look at what is marked BLOCK. Nothing was written."
    if verdict.outcome is Outcome.PASS:
        return "Nothing was written: files are judged, not promoted."
    if found := WITHOUT_VERSION.get(verdict.reason_code):
        timeless = verdict.reason_code is ReasonCode.MISSING_DATA and verdict.policy["name"] != "files"
        return f"{found} The policy files asks for no times." if timeless else found
    if needed := verdict.more_runs:
        counting = " that count" if needed <= min(len(verdict.baseline_runs), len(verdict.candidate_runs)) else ""
        why = "; the notes say which do not" if counting else ""
        return f"About {needed} files per side{counting} would decide{why}."
    return f"{no_number(verdict.reason_code)}; {noise(verdict, 'that machine')}, or at a tier with wider limits."


def after_revisions(decision: Decision) -> str:
    """The next step after two revisions were compared by runs of both."""
    done = "No version was registered, no champion moved; the runs are kept under this session."
    verdict = decision.verdict
    if verdict.reason_code is ReasonCode.FAILS_ALIKE:
        return f"{WITHOUT_VERSION[verdict.reason_code]} {done}"
    again = verdict.reason_code in (ReasonCode.BROKEN_OFF, ReasonCode.INVALID_ENVIRONMENT)
    if verdict.outcome is not Outcome.INCONCLUSIVE or not (verdict.more_runs or again):
        return done
    have = verdict.planned_runs or 0
    needed = max(verdict.more_runs or 0, have + 1)
    about = f"About {needed} pairs would decide (now {have})" if verdict.more_runs else "To try it with one pair more"
    return f"{about}: {pairs_command(decision, needed)}. {done}"


def champion_stays(decision: Decision) -> str:
    """What the alias names after a verdict that moves nothing."""
    if decision.champion_before is None:
        return "There is still no champion."
    return f"The champion stays version {decision.champion_before}."


def more_evidence(decision: Decision) -> str:
    """What would turn an INCONCLUSIVE into an answer."""
    verdict = decision.verdict
    if verdict.reason_code is ReasonCode.BROKEN_OFF:
        return BROKEN
    if verdict.reason_code is ReasonCode.FAILS_ALIKE:
        return ALIKE if verdict.baseline_runs else f"{NOISY} Or choose it all the same: {bless_command(decision)}"
    if verdict.reason_code is ReasonCode.NOT_COMPARABLE:
        return f"Compare like with like, or start a new line with this one: {bless_command(decision)}"
    if verdict.reason_code is ReasonCode.FACTS_DIFFER:
        return f"{FACTS_DIFFER} To go on from it: {bless_command(decision)}"
    if verdict.reason_code is ReasonCode.SUSPECT_DATA:
        meant = f"if it is meant: {bless_command(decision)}"
        return f"Fix what the reason names, leave that run out, or run it again; {meant}"
    if verdict.reason_code is ReasonCode.MISSING_DATA and (short := too_short(decision)):
        return short
    if verdict.reason_code is ReasonCode.MISSING_DATA:
        meant = f"If the change leaves it out on purpose: {bless_command(decision)}"
        return f"Run it again so that every run finishes and records what the reason misses. {meant}"
    if verdict.reason_code is ReasonCode.INVALID_ENVIRONMENT:
        return QUIETER
    if verdict.more_runs:
        return more_runs(decision, verdict.more_runs)
    look = noise(verdict, "this machine")
    return f"{no_number(verdict.reason_code)}; {look}, or choose: {bless_command(decision)}"


def too_short(decision: Decision) -> str:
    """What to do where series have fewer values than the policy asks for; '' if that is not the matter."""
    open_ones = [check for check in decision.verdict.checks if check.outcome is CheckOutcome.INCONCLUSIVE]
    if not any(check.reason.startswith(TOO_SHORT) for check in open_ones):
        return ""
    return longer(decision, "train longer on both sides, the champion's code first") + "."


def longer(decision: Decision, how: str) -> str:
    """From how many steps on the policy judges runs, and what to do with shorter ones, `how` to train longer first."""
    least = decision.verdict.policy["warmup_steps"] + decision.verdict.policy["min_steps"]
    fewer = "ask for fewer in a policy of your own (warmup_steps, min_steps)"
    return f"This policy judges runs from {least} steps on: {how}, or {fewer}"


def bless_command(decision: Decision) -> str:
    """The command that makes a version champion by hand; it needs a reason."""
    return f'canary bless {shlex.quote(decision.model)} {decision.version} --reason "…"'


def dry(decision: Decision) -> str:
    """What to add after a sentence about what happened: that nothing was written; '' if something was."""
    if not decision.dry_run:
        return ""
    how = "Judged again" if decision.hold(HeldBy.OLDER) else "Dry run"
    return f" ({how}, nothing was written.)"


def promote_command(decision: Decision) -> str:
    """The command that puts a version in the place of a newer champion."""
    return f"canary gate {shlex.quote(decision.model)} {decision.version} --promote"


def anchor_command(decision: Decision) -> str:
    """The command that moves the anchor by hand."""
    return f'canary override {shlex.quote(decision.model)} {decision.version} --alias anchor --reason "…"'


def accept_command(decision: Decision) -> str:
    """The command that accepts a version's facts as intended."""
    return f'canary accept-facts {shlex.quote(decision.model)} {decision.version} --reason "…"'


def pairs_command(decision: Decision, pairs: int) -> str:
    """The command that adds pairs of runs to a comparison of two revisions."""
    return f"canary ab --continue {decision.session_id} --pairs {pairs}"


def in_steps(decision: Decision) -> tuple[tuple[str, bool], ...]:
    """`next_step` in pieces, (text, whether it is a command); joined, they give the sentence."""
    said = next_step(decision)
    pairs = max(decision.verdict.more_runs or 0, (decision.verdict.planned_runs or 0) + 1)
    top_up, bless = top_up_command(decision), bless_command(decision)
    known = (f"{top_up}{over_newer(decision)}", top_up, f"{bless} --despite-block", bless, promote_command(decision),
             anchor_command(decision), accept_command(decision), pairs_command(decision, pairs))  # fmt: skip
    named = [one for one in dict.fromkeys(known) if one in said]
    if not named:
        return ((said, False),)
    longest_first = "|".join(map(re.escape, sorted(named, key=len, reverse=True)))
    pieces = re.split(f"({longest_first})", said)
    return tuple((piece, at % 2 == 1) for at, piece in enumerate(pieces) if piece)


def open_ui(store: str, page: str) -> tuple[str, str]:
    """The command that serves the pages (empty for a server, which already does) and the address to open."""
    if store.startswith(("http://", "https://")):
        return "", f"{store.rstrip('/')}{page}"
    return f"canary ui --tracking-uri {shlex.quote(store)}", f"http://127.0.0.1:5000{page}"


def page_of(decision: Decision) -> str:
    """The path, below the server's address, of our page that shows what was judged; '' if no page does."""
    if not decision.session_id or decision.question is Question.FILES:
        return ""
    return f"/canary/session/{quote(decision.session_id, safe='')}"


def version_page(model: str, version: str) -> str:
    """The path at which MLflow's UI shows a model version; its router reads the fragment."""
    return f"/#/models/{quote(model, safe='')}/versions/{version}"


def run_page(experiment_id: str, run_id: str) -> str:
    """The path at which MLflow's UI shows a run."""
    return f"/#/experiments/{experiment_id}/runs/{run_id}"
