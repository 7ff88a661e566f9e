"""What has happened to the champion, and what a reader should do now: sentences with the commands in them."""

from __future__ import annotations

import shlex

from canary_mlflow.gates.evidence.readings import TOO_SHORT
from canary_mlflow.gates.facts.exact import FACTS
from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.gates.model.verdict import CheckOutcome, Outcome, ReasonCode, Standing, Verdict
from canary_mlflow.gates.stats.power import MAX_RUNS
from canary_mlflow.policies import policy_names
from canary_mlflow.reports.decision import SLOW_DRIFT, Decision, HeldBy, Question
from canary_mlflow.reports.formatting import sentence
from canary_mlflow.reports.rows import standing

MARK = "\0"
"""Around a command in a sentence: no name that MLflow keeps, no path and no argument of a command can hold it."""
REASON = '--reason "…"'
NO_MORE = "no more runs can be made"
NO_FRESH = "no fresh baseline, and the policy does not go on without one"
"""How notes begin of a plan that cannot go on: its command is no advice then."""
NOISY = "Train longer, on larger batches or with evaluations on the way: as it is, noise hides whether it learns."
DIFFER = (
    "See whether what differs is meant; canary diff lists it; the smoke tier tells what it costs and what is learned."
)
ADVICE = {
    ReasonCode.BROKEN_OFF: "See what ended it. If the code raised, fix it and run again; otherwise a run of the same "
    "seed that finishes takes its place.",
    ReasonCode.FAILS_ALIKE: "Train longer, or fix what the baseline fails too: as it is, this canary cannot tell the "
    "two apart.",
    ReasonCode.NOT_COMPARABLE: "Compare like with like.",
    ReasonCode.FACTS_DIFFER: DIFFER,
    ReasonCode.MISSING_DATA: "Give what is missing (a run, a metric, more rows), then judge again.",
    ReasonCode.SUSPECT_DATA: "Fix or leave out what the reason names, then judge again.",
    ReasonCode.TOO_FEW_ITEMS: "Evaluate more items of both versions, or state a wider limit for that benchmark.",
    ReasonCode.INVALID_ENVIRONMENT: "Run it again while the machine is quiet; the reason names what disturbed the "
    "clocks.",
}
"""What would turn an open question into an answer, if more runs would not."""
OF_VERSION = ADVICE | {
    ReasonCode.NOT_COMPARABLE: "Compare like with like, or start a new line with this one: {bless}",
    ReasonCode.FACTS_DIFFER: f"{DIFFER} To go on from it: {{bless}}",
    ReasonCode.MISSING_DATA: "Run it again so that every run finishes and records what the reason misses. If the "
    "change leaves it out on purpose: {bless}",
    ReasonCode.SUSPECT_DATA: "Fix what the reason names, leave that run out, or run it again; if it is meant: {bless}",
}
"""The same where a version waits for it."""


def next_step(decision: Decision) -> tuple[tuple[str, bool], ...]:
    """The next step in pieces, (text, whether it is a command); joined, they give the sentences."""
    after = {
        Question.COMPARISON: after_comparison,
        Question.REVISIONS: after_revisions,
        Question.SESSION: after_session,
        Question.CHANGE: after_change,
        Question.FILES: after_files,
    }.get(decision.question, after_gate)
    pieces = f"{clear_harm(decision)}{after(decision)}".split(MARK)
    return tuple((piece, at % 2 == 1) for at, piece in enumerate(pieces) if piece)


def clear_harm(decision: Decision) -> str:
    """What to do first if an INCONCLUSIVE shows harm beyond the limit, and a space; '' for nothing."""
    if decision.verdict.outcome is not Outcome.INCONCLUSIVE:
        return ""
    checks = decision.having(CheckOutcome.INCONCLUSIVE)
    worse = ", ".join(check.metric for check in checks if standing(decision, check) is Standing.BEYOND)
    return f"Worse beyond the limit: {worse}; look at what changed before you make more runs. " if worse else ""


def after_gate(decision: Decision) -> str:
    """The next step after a version was judged for the registry."""
    outcome, stays = decision.verdict.outcome, champion_stays(decision)
    if held := held_back(decision):
        said = f"{stays} {held}"
    elif decision.good:
        return after_promotion(decision)
    elif decision.verdict.reason_code is ReasonCode.NO_BASELINE:
        said = (
            f"Version {decision.version} stays a candidate: this policy makes no first champion by itself (bootstrap: "
            f"manual). To do it by hand: {bless(decision)}"
        )
    elif outcome is Outcome.BLOCK:
        said = f"{stays} Fix what is marked BLOCK and run again; if the change is meant: {if_meant(decision)}"
    else:
        said = f"{stays} {more_evidence(decision)}"
    if not decision.dry_run:
        return said
    return f"{said} ({'Judged again' if decision.hold(HeldBy.OLDER) else 'Dry run'}, nothing was written.)"


def held_back(decision: Decision) -> str:
    """What keeps a version from being promoted although its verdict would allow it, or whatever its verdict; '' if
    nothing does."""
    number = decision.version
    if load := decision.hold(HeldBy.LOAD):
        never = "it is judged and shown, never promoted and never a baseline"
        return f"Version {number} stays out: {load.reason}, so {never}. Train it again without."
    if hold := decision.hold(HeldBy.SHORT) or decision.hold(HeldBy.UNCHECKED):
        checked = "To go on, gate it where torch and its base model are"
        again = checked if hold.by is HeldBy.UNCHECKED else longer(decision, "train longer")
        either = f"{again}, or choose it all the same: {bless(decision)}"
        return f"Version {number} is not promoted: {hold.reason}. {either}"
    short = decision.hold(HeldBy.RUNS)
    code = decision.verdict.outcome is not Outcome.BLOCK and decision.hold(HeldBy.CODE)
    if not decision.holds or not (decision.good or short or code):
        return ""
    held = f"Version {number} is not promoted: {decision.holds[0].reason}."
    if decision.hold(HeldBy.OLDER):
        return f"{held} To promote it all the same: {command(decision, 'gate', '--promote')}"
    if short is None or short.runs is None:
        return held
    again = f"train it again with {seeds(decision, short.runs) if decision.own_script else f'repeats={short.runs}'}."
    if decision.own_script or not plan_reaches(decision.verdict, short.runs):
        return f"{held} {sentence(again)}"
    newer = number and decision.champion_before and int(number) < int(decision.champion_before)
    return f"{held} Add them: {top_up(decision, ' --promote' if newer else '')}, or {again}"


def after_promotion(decision: Decision) -> str:
    """The next step after PASS or bootstrap."""
    if decision.dry_run:
        return f"Dry run, nothing was written: without --dry-run, version {decision.version} would be champion now."
    before = f" (before: version {decision.champion_before})" if decision.champion_before else ""
    load = f"Load it as models:/{decision.model}@champion"
    if decision.evidence_only:
        load = "It is evidence only: there are no weights to load."
    return f"Version {decision.version} became champion{before}. {load}"


def if_meant(decision: Decision) -> str:
    """What to do with a version that is blocked if its change is meant."""
    if [check.metric for check in decision.having(CheckOutcome.BLOCK)] == [FACTS]:
        return f"{command(decision, 'accept-facts', REASON)}, then gate it again"
    anchored = ""
    if decision.verdict.reason.startswith(SLOW_DRIFT):
        move = command(decision, "override", f"--alias anchor {REASON}")
        anchored = f", and so that the next ones are not held to the old anchor: {move}"
    return f"{command(decision, 'bless', f'{REASON} --despite-block')}{anchored}"


def after_session(decision: Decision) -> str:
    """The next step after a session that left no version."""
    blocked = decision.verdict.outcome is Outcome.BLOCK
    what = "Look at the runs that failed" if blocked else "See why its runs ended early"
    stays = champion_stays(decision)
    return f"No version was registered. {stays} {what} (open them as below), fix the cause and run again."


def after_change(decision: Decision) -> str:
    """The next step after a session that was only judged (register=false)."""
    done = "Judged only (register=false): no version was registered."
    verdict, needed = decision.verdict, decision.verdict.more_runs
    if decision.champion_before is None:
        return f"{done} There is no champion to compare with; a session with register=true makes the first."
    said = ""
    if verdict.outcome is Outcome.BLOCK:
        said = " Fix what is marked BLOCK and run again."
    elif verdict.reason_code is ReasonCode.INVALID_ENVIRONMENT:
        said = f" {ADVICE[verdict.reason_code]}"
    elif verdict.outcome is Outcome.INCONCLUSIVE and needed:
        enough = f"About {needed} runs per side would decide: repeats={needed}"
        said = f" {champion_is_short(decision, needed) or enough}"
    return f"{done} {champion_stays(decision)}{said}"


def after_comparison(decision: Decision) -> str:
    """The next step after two sides were compared."""
    verdict, said = decision.verdict, ""
    if verdict.outcome is Outcome.BLOCK:
        said = "Look at what is marked BLOCK. "
    elif verdict.outcome is Outcome.INCONCLUSIVE and verdict.reason_code in ADVICE:
        said = f"{ADVICE[verdict.reason_code]} "
    elif verdict.outcome is Outcome.INCONCLUSIVE and verdict.more_runs:
        said = f"About {verdict.more_runs} runs per side would decide (now {have(verdict)}). "
    elif verdict.outcome is Outcome.INCONCLUSIVE:
        said = f"{no_number(verdict.reason_code)}. "
    return f"{said}Read-only: nothing was written and no champion moved."


def after_files(decision: Decision) -> str:
    """What would turn an open question about judged files into an answer."""
    verdict = decision.verdict
    if verdict.outcome is Outcome.BLOCK:
        return "Look at what is marked BLOCK. Nothing was written."
    if verdict.outcome is Outcome.PASS:
        return "Nothing was written: files are judged, not promoted."
    if found := ADVICE.get(verdict.reason_code):
        metrics = verdict.policy["name"] != "files" and not verdict.policy.get("evals")
        timeless = verdict.reason_code is ReasonCode.MISSING_DATA and metrics
        return f"{found} The policy files asks for no times." if timeless else found
    if needed := verdict.more_runs:
        counting = needed <= min(len(verdict.baseline_runs), len(verdict.candidate_runs))
        that, why = (" that count", "; the notes say which do not") if counting else ("", "")
        return f"About {needed} files per side{that} would decide{why}."
    return f"{no_number(verdict.reason_code)}; {noise(decision, 'that machine')}, or at a tier with wider limits."


def after_revisions(decision: Decision) -> str:
    """The next step after two revisions were compared by runs of both."""
    done = "No version was registered, no champion moved; the runs are kept under this session."
    verdict = decision.verdict
    if verdict.reason_code is ReasonCode.FAILS_ALIKE:
        return f"{ADVICE[verdict.reason_code]} {done}"
    again = verdict.reason_code in (ReasonCode.BROKEN_OFF, ReasonCode.INVALID_ENVIRONMENT)
    if verdict.outcome is not Outcome.INCONCLUSIVE or not (verdict.more_runs or again):
        return done
    now = verdict.planned_runs or 0
    pairs = max(verdict.more_runs or 0, now + 1)
    about = f"About {pairs} pairs would decide (now {now})" if verdict.more_runs else "To try it with one pair more"
    return f"{about}: {MARK}canary ab --continue {decision.session_id} --pairs {pairs}{MARK}. {done}"


def champion_stays(decision: Decision) -> str:
    """What the alias names after a verdict that moves nothing."""
    if decision.champion_before is None:
        return "There is still no champion."
    return f"The champion stays version {decision.champion_before}."


def more_evidence(decision: Decision) -> str:
    """What would turn an INCONCLUSIVE about a version into an answer."""
    verdict, code = decision.verdict, decision.verdict.reason_code
    short = any(check.reason.startswith(TOO_SHORT) for check in decision.having(CheckOutcome.INCONCLUSIVE))
    if code is ReasonCode.FAILS_ALIKE and not verdict.baseline_runs:
        return f"{NOISY} Or choose it all the same: {bless(decision)}"
    if code is ReasonCode.MISSING_DATA and short:
        return longer(decision, "train longer on both sides, the champion's code first") + "."
    benchmarks, asking = verdict.policy.get("evals") or {}, decision.having(CheckOutcome.INCONCLUSIVE)
    if code is ReasonCode.MISSING_DATA and asking and asking[0].metric in benchmarks:
        number = decision.champion_before if "baseline" in asking[0].reason else decision.version
        return f"Evaluate it, then: {MARK}canary evals add {shlex.quote(f'{decision.model}/{number}')} PATH{MARK}"
    if code in OF_VERSION:
        return OF_VERSION[code].format(bless=bless(decision))
    if verdict.more_runs:
        return more_runs(decision, verdict.more_runs)
    return f"{no_number(code)}; {noise(decision, 'this machine')}, or choose: {bless(decision)}"


def more_runs(decision: Decision, needed: int) -> str:
    """How to get `needed` runs per side, by each possible way."""
    verdict = decision.verdict
    if words := champion_is_short(decision, needed):
        goes_on = verdict.look is not None and plan_reaches(verdict, 0) and not decision.own_script
        return f"{words} Its plan may decide sooner: {top_up(decision)}" if goes_on else words
    missing = max(0, needed - len(verdict.candidate_runs)) if plan_reaches(verdict, needed) else 0
    each = decision.run_minutes
    time = f", {lasting(missing * each)} for the candidate's {missing} more" if each is not None and missing else ""
    add = f", or add them: {top_up(decision)}" if missing and not decision.own_script else ""
    now = f"now {have(verdict)}{time}"
    return f"About {needed} runs per side would decide ({now}): train {seeds(decision, needed)}{add}."


def champion_is_short(decision: Decision, needed: int) -> str:
    """What to do if the champion has fewer runs than needed; '' if it has enough. Topping up adds runs to the champion
    only if the policy always makes fresh ones."""
    verdict = decision.verdict
    looks = verdict.policy.get("looks", {})
    grows = looks.get("fresh_baseline", "always") == "always" and plan_reaches(verdict, 0) and not decision.own_script
    if len(verdict.baseline_runs) >= needed or grows:
        return ""
    return (
        f"About {needed} runs per side would decide (now {have(verdict)}), and the champion's stay as they are: train "
        f"its code again with {seeds(decision, needed)}, which makes that the champion, then this one."
    )


def plan_reaches(verdict: Verdict, needed: int) -> bool:
    """Whether topping up would make that many runs of the candidate; with 0, whether it would make any."""
    plan = verdict.policy.get("looks", {}).get("runs", (MAX_RUNS,))
    ended = any(note.startswith((NO_MORE, NO_FRESH)) for note in verdict.notes)
    made = len(plan) if verdict.look is None and (verdict.planned_runs or 0) >= plan[-1] else verdict.look or 0
    return not ended and bool(needed <= plan[-1]) and made < len(plan)


def seeds(decision: Decision, count: int) -> str:
    """`5 seeds (repeats=5)`: what a version that is trained again must be made of."""
    return f"{count} seeds in one session" if decision.own_script else f"{count} seeds (repeats={count})"


def have(verdict: Verdict) -> str:
    """`3 against 5`: runs of the candidate and of the baseline."""
    return f"{len(verdict.candidate_runs)} against {len(verdict.baseline_runs)}"


def no_number(code: ReasonCode) -> str:
    """Why more runs are not advised."""
    if code is ReasonCode.NEAR_MARGIN:
        return f"It is so near the limit that more than {MAX_RUNS} runs per side would be needed"
    return f"No number of runs up to {MAX_RUNS} per side would decide all of it"


def noise(decision: Decision, where: str) -> str:
    """Where to look for the noise that keeps metrics open: the machine's, or the seeds', which a quiet machine does not
    reduce."""
    rules = decision.verdict.policy.get("rules", {})
    names = [check.metric for check in decision.having(CheckOutcome.INCONCLUSIVE)]
    metrics = {name: METRICS.get(rules.get(name, {}).get("metric", name)) for name in names}
    by_seed = [name for name, metric in metrics.items() if metric is None or metric.repeatable]
    if not by_seed:
        return f"look at the noise on {where}"
    machine = f", and at the noise on {where}" if len(by_seed) < len(metrics) else ""
    return f"seeds alone differ that much in {', '.join(by_seed)}: look at longer runs or more held-out data{machine}"


def longer(decision: Decision, how: str) -> str:
    """From how many steps on the policy judges runs, and what to do with shorter ones, `how` to train longer first."""
    least = decision.verdict.policy["warmup_steps"] + decision.verdict.policy["min_steps"]
    fewer = "ask for fewer in a policy of your own (warmup_steps, min_steps)"
    return f"This policy judges runs from {least} steps on: {how}, or {fewer}"


def lasting(minutes: float) -> str:
    """`about 12 min`, `about 3 h`, `under a minute`."""
    if minutes < 1:
        return "under a minute"
    return f"about {minutes:.0f} min" if minutes < 100 else f"about {minutes / 60:.0f} h"


def command(decision: Decision, name: str, options: str) -> str:
    """A command about the version, marked."""
    return f"{MARK}canary {name} {shlex.quote(decision.model)} {decision.version} {options}{MARK}"


def bless(decision: Decision) -> str:
    """The command that makes a version champion by hand; it needs a reason."""
    return command(decision, "bless", REASON)


def top_up(decision: Decision, more: str = "") -> str:
    """The command that adds runs; a user's policy must be named again."""
    policy = str(decision.verdict.policy.get("name", ""))
    own = "" if policy in (*policy_names(), "") else f" --policy FILE (that of policy {policy})"
    return command(decision, "gate", f"--top-up{own}{more}")
