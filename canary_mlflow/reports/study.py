"""Everything that a full report shows about a run, a session or a version, as values for any format, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from canary_mlflow.reports.charts import Chart
from canary_mlflow.reports.decision import Decision, decision_to_dict
from canary_mlflow.reports.instabilities import Instability
from canary_mlflow.reports.layer_drift import LayerMoved
from canary_mlflow.reports.view import view_of
from canary_mlflow.schemas import stamped
from canary_mlflow.shown import json_text
from canary_mlflow.tracking.reading.profile import Profiled


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Statistics of a series' finite values; None if it has none. `not_finite`: how many values are not finite."""

    values: int
    not_finite: int
    first: float | None = None
    last: float | None = None
    lowest: float | None = None
    highest: float | None = None
    mean: float | None = None
    median: float | None = None
    spread: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunPart:
    """One run: what it was, how it ended, the statistics of its series by canonical name. `side`: candidate or
    baseline."""

    run_id: str
    run: str
    side: str
    name: str
    status: str
    seed: int | None
    algo: str
    model: str
    tier: str
    steps: int
    completed: bool
    failure: str
    failure_reason: str
    learned: bool | None
    learned_reason: str
    workload: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Figures] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's rank correlation of each two signals over the steps that both have: the mean over `runs` runs.

    `rows[i][j]` belongs to `names[i]` and `names[j]`; None if no run has enough steps. `said`: why there is none.
    """

    names: Sequence[str] = ()
    rows: Sequence[Sequence[float | None]] = ()
    runs: int = 0
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One performance metric on both sides: medians over the runs of each run's median over its steps."""

    metric: str
    unit: str
    worse: str
    baseline: float | None
    candidate: float | None
    change: float | None
    baseline_runs: int
    candidate_runs: int


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The peak memory of one algorithm's runs in MiB: the median over the runs, and their range."""

    algo: str
    runs: int
    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak memory by algorithm, of runs that are alike in what `like` names. `said`: what is missing, and why."""

    like: str = ""
    peaks: Sequence[Peak] = ()
    said: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Study:
    """The content of a report. `decision`: None if nothing was judged; `no_verdict` says why. `origin`: its source.

    `gone`: runs of the evidence that the store no longer holds. `ledger`: its rows about the version, as `--json` has
    them. `notes`: what else a reader must know.
    """

    subject: str
    kind: str
    decision: Decision | None
    origin: str = ""
    no_verdict: str = ""
    store: str = ""
    runs: Sequence[RunPart] = ()
    gone: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    band: str = ""
    correlation: Correlation = field(default_factory=Correlation)
    instabilities: Sequence[Instability] = ()
    performance: Sequence[Compared] = ()
    layer_drift: Sequence[LayerMoved] = ()
    memory: Memory = field(default_factory=Memory)
    profiled: Profiled | None = None
    ledger: Sequence[Mapping[str, Any]] = ()
    ledger_said: str = ""
    notes: Sequence[str] = ()

    @property
    def candidates(self) -> Sequence[RunPart]:
        """The runs that the report is about."""
        return [run for run in self.runs if run.side == "candidate"]


def verdict_json(decision: Decision) -> str:
    """The report of a verdict as one JSON object, indented, without NaN; the file `verdict.json` of a session."""
    return json_text(stamped("decision", {**decision_to_dict(decision), **with_card(decision)})) + "\n"


def study_json(study: Study) -> str:
    """The same for a whole study, with the figures of its runs."""
    return json_text(stamped("report", {**study_to_dict(study), **with_card(study.decision)})) + "\n"


def with_card(decision: Decision | None) -> dict[str, Any]:
    """The card, and two of its sentences under their own names; `card` is None if nothing was judged."""
    if decision is None:
        return {"exact": "", "changed": "", "card": None}
    view = view_of(decision)
    return {"exact": view.exact, "changed": view.changed, "card": view.card_to_dict()}


def study_to_dict(study: Study) -> dict[str, Any]:
    """The study as plain JSON values in full precision; if something was judged, also with the keys of every other
    report."""
    decision = study.decision
    return {
        "subject": study.subject,
        "kind": study.kind,
        "origin": study.origin,
        "no_verdict": study.no_verdict,
        **({"decision": None} if decision is None else decision_to_dict(decision)),
        "runs": [asdict(run) for run in study.runs],
        "gone": list(study.gone),
        "correlation": asdict(study.correlation),
        "instabilities": [asdict(one) for one in study.instabilities],
        "performance": [asdict(one) for one in study.performance],
        "layer_drift": [asdict(one) for one in study.layer_drift],
        "memory": asdict(study.memory),
        "profile": None if study.profiled is None else asdict(study.profiled),
        "ledger": list(study.ledger),
        "ledger_said": study.ledger_said,
        "notes": list(study.notes),
    }
