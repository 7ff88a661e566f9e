"""What a verdict leaves in MLflow: tags and description of the version, note and files of the session."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from mlflow.entities import Metric, Param

from canary_mlflow import tags
from canary_mlflow.gates.model.records import SUMMARIES
from canary_mlflow.gates.model.verdict import Outcome
from canary_mlflow.gates.parser import parse_policy
from canary_mlflow.registry.actors import REASON_LIMIT
from canary_mlflow.reports import markdown, naming
from canary_mlflow.reports.decision import Decision, HeldBy
from canary_mlflow.reports.study import verdict_json
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.stores.session import log_tags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun


DESCRIPTION_LIMIT = 5000  # characters; the column of a version's description, and fewer than the 8000 of a run's tag
MOST_PARAMS = 100  # in one request to MLflow
SEPARATOR = " · "
SUMMARY = "session/"
WORDS = (*(word.value for word in Outcome), "bootstrap")  # with which a name begins that has a verdict


def verdict_tags(decision: Decision) -> dict[str, str]:
    """The verdict as short tags, by which versions can be filtered and sorted."""
    verdict, load = decision.verdict, decision.hold(HeldBy.LOAD)
    return {
        **({tags.NOT_PROMOTABLE: load.reason} if load else {}),
        tags.VERDICT: decision.word,
        tags.VERDICT_REASON: verdict.reason[:REASON_LIMIT],
        **({tags.CHANGED: changed} if (changed := naming.name(verdict)) else {}),
        tags.BASELINE_VERSION: decision.champion_before or "none",
        tags.POLICY: str(verdict.policy.get("name", "")),
    }


def publish(client: MlflowClient, decision: Decision) -> None:
    """Write the report to the version's and the session's pages, and all of it as files of the session."""
    publish_texts(client, decision)
    publish_files(client, decision)  # last: they are the only part that can fill a disk


def publish_texts(client: MlflowClient, decision: Decision) -> None:
    """Write the version's description, and the session's note and tags."""
    report = markdown.render(decision)
    if decision.version is not None:
        where = f"report.md of run {decision.session_id}" if decision.session_id else "canary gate … --json"
        short = markdown.fit(report, DESCRIPTION_LIMIT, where)
        client.update_model_version(decision.model, decision.version, short)
    if decision.session_id is not None:
        tag_session(client, decision, report)


def tag_session(client: MlflowClient, decision: Decision, report: str) -> None:
    """Write note, tags, name and metrics of the parent run."""
    assert decision.session_id is not None
    found = {
        tags.DESCRIPTION: markdown.fit(report, DESCRIPTION_LIMIT, "report.md, among this run's artifacts"),
        tags.MODEL_NAME: decision.model,
        tags.VERDICT: decision.word,
        tags.VERDICT_REASON: decision.verdict.reason[:REASON_LIMIT],
        **({tags.CHANGED: changed} if (changed := naming.name(decision.verdict)) else {}),
    }
    if decision.version is not None:
        found[tags.VERSION] = decision.version
    run = client.get_run(decision.session_id)
    log_tags(client, decision.session_id, found)
    if run.data.tags.get(tags.ROLE) == "session":  # a version's source run is evidence, and its name its owner's
        runs = [client.get_run(one) for one in decision.verdict.candidate_runs]
        client.update_run(decision.session_id, status_after(run, runs, decision), named(run.info.run_name, decision))
        summarise(client, decision)
        same = [Param(*one) for one in (runs[0].data.params.items() if runs else ()) if one[0] not in run.data.params
                and all(one in other.data.params.items() for other in runs)]  # fmt: skip
        client.log_batch(decision.session_id, params=same[:MOST_PARAMS])


def status_after(session: MlflowRun, runs: Sequence[MlflowRun], decision: Decision) -> str | None:
    """The status of a session that has ended, None to leave it: FAILED once it is blocked, as a check that failed,
    until another verdict; its runs keep theirs."""
    blocked, before = decision.word == Outcome.BLOCK, session.data.tags.get(tags.VERDICT)
    if session.info.status == "RUNNING" or (not blocked and before != Outcome.BLOCK):
        return None
    ended = {"FAILED" if blocked else "FINISHED", *(run.info.status for run in runs)}
    return "FINISHED" if ended == {"FINISHED"} else "FAILED"


def named(before: str, decision: Decision) -> str:
    """`BLOCK v2: lr 0.002 → 0.02 · dpo tiny-neox smoke`: the last verdict, the version and what was changed before the
    session's own name, so that a narrow column shows them."""
    version = f" v{decision.version}" if decision.version is not None else ""
    changed = naming.name(decision.verdict)
    return f"{decision.word}{version}{f': {changed}' if changed else ''}{SEPARATOR}{own_name(before)}"


def own_name(name: str) -> str:
    """A session's own name, without the verdict, which stood behind it in earlier versions."""
    first, *_, last = [*name.split(SEPARATOR), name.rpartition(SEPARATOR)[2]]
    return last if first.partition(" ")[0].rstrip(":") in WORDS else first


def summarise(client: MlflowClient, decision: Decision) -> None:
    """Log the session's own metrics: for each rule, the mean over its runs of the number to which the gate reduces a
    run. Without them MLflow has nothing to compare between two sessions."""
    assert decision.session_id is not None
    policy = parse_policy(decision.verdict.policy)
    runs = read_runs(client, decision.verdict.candidate_runs, {rule.metric for rule in policy.rules})
    found = {}
    for rule in policy.rules:
        series = [run.series[rule.metric] for run in runs if rule.metric in run.series]
        numbers = (SUMMARIES[rule.reduction](one, policy.warmup_steps) for one in series)
        values = [number for number in numbers if math.isfinite(number)]
        if values:
            found[f"{SUMMARY}{rule.name}"] = math.fsum(values) / len(values)
    now = int(time.time() * 1000)
    client.log_batch(decision.session_id, metrics=[Metric(key, value, now, 0) for key, value in found.items()])


def publish_files(client: MlflowClient, decision: Decision) -> None:
    """Store the whole report and verdict as files of the parent run."""
    if decision.session_id is not None:
        client.log_text(decision.session_id, markdown.render(decision), "report.md")
        client.log_text(decision.session_id, verdict_json(decision), "verdict.json")
