"""Follows a run from outside until it has ended: how far it is, its curves in one line each, what the watch says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchRun
from canary_mlflow.gates.model.metrics import METRICS, label
from canary_mlflow.gates.model.records import Series
from canary_mlflow.gates.model.wording import quantity
from canary_mlflow.gates.watch import WatchWarning
from canary_mlflow.reports.charts import PANELS
from canary_mlflow.reports.formatting import duration
from canary_mlflow.shown import visible
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.describing.schema import mlflow_key
from canary_mlflow.tracking.reading.facts import Latest, RunFacts, sentence
from canary_mlflow.tracking.reading.histories import read_points
from canary_mlflow.tracking.reading.records import series_of
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import active_run, child_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What was seen at one moment: the run, and the requested series that it has, by canonical name.

    `session`: the session that is followed, if any; `number`: which of its runs this is, counted from 1.
    """

    run: RunFacts
    series: Mapping[str, Series] = field(default_factory=dict)
    session: RunFacts | None = None
    number: int = 0

    @property
    def ended(self) -> bool:
        """Whether what is followed is over."""
        return not (self.session or self.run).running


def newest_running(client: MlflowClient) -> str:
    """The id of the latest run that is still going on; of a session or sweep only if none of its runs is.

    Raises NoSuchRun if nothing is going on.
    """
    experiments = [one.experiment_id for one in client.search_experiments()]
    found = client.search_runs(
        experiments, "attributes.status = 'RUNNING'", order_by=["attributes.start_time DESC"], max_results=100
    )
    if not found:
        raise NoSuchRun(
            f"{without_password(client.tracking_uri)}: nothing is running there; expected a run in progress; "
            "canary watch RUN shows one that has ended, --tracking-uri names another store"
        )
    alone = [run for run in found if run.data.tags.get(tags.ROLE) not in ("session", "sweep")]
    return str((alone or found)[0].info.run_id)


def look(client: MlflowClient, run_id: str, names: Sequence[str]) -> Sight:
    """What is seen of a run, or of the current run of a session. `names`: canonical names of the series. Raises
    NoSuchRun, StoreError."""
    found = active_run(client, run_id)
    if found.data.tags.get(tags.ROLE) not in ("session", "sweep"):
        return sight(client, found, names)
    session = facts_of(found, {})
    children = [run for run in child_runs(client, run_id) if run.data.tags.get(tags.ROLE) != "baseline"]
    if not children:
        return Sight(run=session, session=session)
    number, present = max(enumerate(children, 1), key=lambda one: (one[1].info.status == "RUNNING", one[0]))
    return sight(client, present, names, session, number)


def sight(
    client: MlflowClient, run: MlflowRun, names: Sequence[str], session: RunFacts | None = None, number: int = 0
) -> Sight:
    """A run with its series."""
    run_id = run.info.run_id
    keys = {name: mlflow_key(name) for name in names if mlflow_key(name) in run.data.metrics}
    points = read_points(client, {run_id: list(keys.values())})[run_id]
    some = {name: points[key] for name, key in keys.items() if len(points[key])}
    latest = {
        keys[name]: Latest(step=int(last[0]), value=float(last[2]), timestamp=int(last[1]))
        for name, rows in some.items()
        for last in (rows[rows[:, 0].argmax()],)
    }
    series = {name: series_of(name, rows) for name, rows in some.items()}
    return Sight(run=facts_of(run, latest), series=series, session=session, number=number)


def facts_of(run: MlflowRun, latest: Mapping[str, Latest]) -> RunFacts:
    """What MLflow's client tells about a run."""
    return RunFacts(
        run_id=run.info.run_id,
        name=run.info.run_name or "",
        status=run.info.status,
        started=run.info.start_time or 0,
        ended=run.info.end_time,
        deleted=run.info.lifecycle_stage != "active",
        experiment=str(run.info.experiment_id),
        artifacts=run.info.artifact_uri or "",
        tags=expanded(run.data.tags),
        latest=latest,
    )


LOG = {panel.lines[0] for panel in PANELS if panel.log}
WATCHED = tuple(dict.fromkeys(panel.lines[0] for panel in PANELS if panel.lines[0] != "learning_rate"))
BLOCKS = "▁▂▃▄▅▆▇█"
BROKEN = "!"
WIDTH = 40  # columns of a curve, and of the bar
STYLES = {"WARN": "yellow", "CRITICAL": "bold red", "STOP": "bold white on red"}
IN_LINES = 3  # series in a line of plain text


def screen(sight: Sight, now: int, trouble: str) -> RenderableType:
    """The whole screen. `now`: in ms. `trouble`: why there is no news."""
    parts: list[RenderableType] = [heading(sight), progress(sight.run, now)]
    if sight.series:
        parts.append(curves(sight.series.values()))
    elif sight.run.running:
        parts.append(Text("Nothing recorded yet.", style="dim"))
    parts += [warned(one) for one in sight.run.warnings]
    if (more := sight.run.warned - len(sight.run.warnings)) > 0:
        parts.append(Text(f"and {more} more in warnings.jsonl among the run's artifacts", style="dim"))
    if trouble:
        parts.append(Text(visible(trouble), style="yellow"))
    if sight.ended:
        parts.append(Text(ending(sight)))
    return Group(*parts)


def heading(sight: Sight) -> Text:
    """What is followed."""
    which = f", run {sight.number} of its session" if sight.session is not None and sight.number else ""
    return Text(f"{visible(sight.run.name or sight.run.run_id)}{which}", style="bold")


def progress(run: RunFacts, now: int) -> RenderableType:
    """A bar if the run says how many steps it plans, and the time left at its pace."""
    said = Text(f"  {standing(run, now)}")
    if not run.max_steps:
        return said
    line = Table.grid()
    line.add_row(ProgressBar(total=run.max_steps, completed=min(run.step, run.max_steps), width=WIDTH), said)
    return line


def standing(run: RunFacts, now: int) -> str:
    """`RUNNING  step 40 of 100, 35 s left`."""
    steps = f"step {run.step}" + (f" of {run.max_steps}" if run.max_steps else "")
    left = run.seconds_left(now)
    silence = run.silent_for(now)
    return f"{run.status}  {steps}" + (
        f", no news for {duration(silence)}" if silence else f", {duration(left)} left" if left is not None else ""
    )


def curves(series: Iterable[Series]) -> Table:
    """One line for each series: name, latest value, curve, lowest and highest."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("latest", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("lowest", justify="right", no_wrap=True)
    table.add_column("highest", justify="right", no_wrap=True)
    for one in series:
        unit = METRICS[one.name].unit
        finite = one.values[np.isfinite(one.values)]
        ends = [quantity(float(end), unit) for end in (finite.min(), finite.max())] if len(finite) else ["", ""]
        table.add_row(label(one.name), value(float(one.values[-1]), unit), sparkline(scaled(one)), *ends)
    return table


def scaled(series: Series) -> np.ndarray:
    """The values as they are drawn: logarithms if the live page has a logarithmic axis for them."""
    drawable = series.name in LOG and bool((series.values[np.isfinite(series.values)] > 0).all())
    return np.log(series.values) if drawable else series.values


def value(number: float, unit: str) -> str:
    """A value with its unit; NaN and infinities as words."""
    return quantity(number, unit) if math.isfinite(number) else str(number).replace("nan", "NaN")


def sparkline(values: np.ndarray) -> str:
    """At most WIDTH blocks, each the mean of a stretch, scaled from the lowest to the highest mean; ! for a stretch
    with a value that is not finite."""
    stretches = np.array_split(values, min(WIDTH, len(values))) if len(values) else []
    means = [float(stretch.mean()) for stretch in stretches]  # a NaN or Inf in it makes it one
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(block(mean, low, high) for mean in means)


def block(mean: float, low: float, high: float) -> str:
    """The block for a value; the middle one if all values are equal."""
    if not math.isfinite(mean):
        return BROKEN
    share = (mean - low) / (high - low) if high > low else 0.5
    return BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)]


def warned(warning: WatchWarning) -> Text:
    """A warning, with its level in colour."""
    level = warning.level.name
    return Text.assemble((level, STYLES[level]), visible(sentence(warning).removeprefix(level)))


def ending(sight: Sight) -> str:
    """How the run ended, in a sentence."""
    run = sight.run
    why = f" ({visible(run.failure)})" if run.failure else ""
    watch = f"; the watch: {visible(run.level)}" if run.level else "; nobody watched it"
    verdict = (sight.session or run).tags.get(tags.VERDICT, "")
    return f"{run.status} at step {run.step}{why}{watch}" + (f"; verdict: {visible(verdict)}" if verdict else "")


def lines(before: Sight | None, sight: Sight, now: int) -> Iterator[str]:
    """What is new since `before`, for a stream that is not a terminal: the run, its warnings, its progress, its end."""
    other = before is None or before.run.run_id != sight.run.run_id
    if other:
        yield heading(sight).plain
    known: Sequence[WatchWarning] = () if before is None or other else before.run.warnings
    yield from (visible(sentence(one)) for one in sight.run.warnings if one not in known)
    if other or before is None or sight.run.step != before.run.step or sight.run.status != before.run.status:
        shown = list(sight.series.values())[:IN_LINES]
        yield "  ".join([standing(sight.run, now), *map(brief, shown)])
    if sight.ended:
        yield ending(sight)


def brief(series: Series) -> str:
    """`loss 0.512`."""
    return f"{label(series.name)} {value(float(series.values[-1]), METRICS[series.name].unit)}"
