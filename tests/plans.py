"""Plans of looks whose runs are recorded at a given speed, for tests of what is made and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mlflow.entities import Metric
from recorded import RAISED

from canary_mlflow.errors import NoSource
from canary_mlflow.gates.model.policy import FreshBaseline, Policy, WithoutSource
from canary_mlflow.launching.plan import Plan
from canary_mlflow.launching.runs import Here, Result, RunSpec
from canary_mlflow.policies import load_policy
from canary_mlflow.tags import BASELINE_OF
from canary_mlflow.tracking.describing.failures import raised_from


@dataclass
class Recording(Here):
    """Names a plan's runs and makes them: recorded ones, as fast as it is told."""

    recorded: Any
    session: str
    host: str = "another"
    slower: float = 1.0
    today: float = 1.0
    gone: str = ""  # why the candidate's code cannot be had
    lost: str = ""  # the same of the champion's
    failing: tuple[int, ...] = ()  # seeds whose runs break off
    diverging: tuple[int, ...] = ()  # seeds whose runs become unstable
    raising: tuple[int, ...] = ()  # seeds whose runs an exception of their code ends
    unfresh: tuple[int, ...] = ()  # seeds whose fresh runs break off
    stop_at: int | None = None  # the number of the call at which somebody presses Ctrl-C
    sentinels: tuple[float, ...] = ()  # of the runs in turn, the last one's for those after it too
    calls: list[str] = field(default_factory=list)

    def record(self, seed: int, slower: float, tags: dict[str, str]) -> str:
        made: str = self.recorded.run(self.session, seed, slower=slower, tags=tags, nan_at=None, without=())
        return made

    def call(self, what: str) -> None:
        if len(self.calls) == self.stop_at:
            self.stop_at = None
            raise KeyboardInterrupt
        self.calls.append(what)

    def prepare(self) -> str:
        if self.gone:
            raise NoSource(self.gone)
        return "the code of the test"

    def candidate(self, seed: int) -> RunSpec:
        return RunSpec(name=f"seed {seed}", store="", session=self.session, seed=seed)

    def prepare_fresh(self, champion: str, runs: Any) -> None:
        if self.lost:
            raise NoSource(f"champion version {champion}: {self.lost}")

    def fresh(self, champion: str, seed: int) -> RunSpec:
        name = f"champion version {champion}: seed {seed}"
        return RunSpec(name=name, store="", session=self.session, seed=seed, role="baseline")

    def take_fresh(self, champion: str, spec: RunSpec, result: Result) -> None:
        if result.broke_off:
            raise NoSource(f"{spec.name} broke off")
        self.recorded.client.set_tag(result.run_id, BASELINE_OF, champion)

    def run(self, seed: int) -> None:
        """Make a run of the candidate that no plan asks for."""
        self.one(self.candidate(seed)).require_end(self.candidate(seed))

    def one(self, spec: RunSpec) -> Result:
        seed, fresh = spec.seed, spec.role == "baseline"
        self.call(f"{'b' if fresh else 'c'}{seed}")
        if fresh:
            run_id = "" if seed in self.unfresh else self.recorded.fresh(self.session, seed, self.today)
            return Result(seed=seed, run_id=run_id, failure="" if run_id else "error")
        if seed in self.failing:
            run_id = self.record(seed, 1.0, {"canary.failure": "error"})
            self.recorded.client.set_terminated(run_id, "FAILED")
            return Result(seed=seed, run_id=run_id, failure="error")
        if seed in self.diverging:
            run_id = self.recorded.run(self.session, seed, slower=1.0, tags={}, nan_at=20, without=())
            return Result(seed=seed, run_id=run_id, failure="instability")
        if seed in self.raising:
            run_id = self.record(seed, 1.0, RAISED)
            return Result(seed=seed, run_id=run_id, failure="error", raised=raised_from(RAISED))
        run_id = self.record(seed, self.slower * self.today, {"canary.env.host": self.host})
        if self.sentinels:
            beat(self.recorded, run_id, self.sentinels[min(len(self.calls), len(self.sentinels)) - 1])
        return Result(seed=seed, run_id=run_id)


class AtOnce(Recording):
    """Makes the runs of a look side by side, as on a cluster: all have ended before the first turn comes, and a fresh
    run is marked as one in its own turn."""

    at_once = True

    def make(self, specs: Iterable[RunSpec]) -> Iterator[tuple[RunSpec, Result]]:
        yield from list(super().make(specs))


def beat(recorded: Any, run_id: str, seconds: float) -> None:
    """A fixed kernel timed beside the steps."""
    points = [Metric("perf/sentinel_time", seconds, 1_700_000_000_000 + step, step) for step in range(1, 41)]
    recorded.client.log_batch(run_id, metrics=points)


def plan(
    guarded: Any,
    policy: Policy,
    host: str = "another",
    beats: float | None = None,
    maker: type[Recording] = Recording,
    **making: Any,
) -> Plan:
    """A version with one run on its way, which was made today on `host`. `beats`: see `beat`."""
    tags = {"canary.env.host": host}
    session = guarded.session(runs=1, slower=making.get("slower", 1.0) * making.get("today", 1.0), tags=tags)
    if beats is not None:
        beat(guarded, guarded.children(session)[0], beats)
    version, recording = guarded.register(session), maker(guarded, session, host, **making)
    return Plan(
        client=guarded.client,
        model=guarded.model,
        version=version,
        policy=policy,
        added=recording,
        runner=recording,
        say=lambda line: None,
    )


def late_policy() -> Policy:
    """The first look decides next to nothing, the second nearly all."""
    policy = load_policy("smoke")
    return replace(policy, looks=replace(policy.looks, shares=(0.001, 0.999)))


def with_fresh(policy: Policy, without: WithoutSource = WithoutSource.UNPAIRED) -> Policy:
    looks = replace(policy.looks, fresh_baseline=FreshBaseline.ALWAYS, without_source=without)
    return replace(policy, looks=looks)


def looks(guarded: Any, session: str) -> dict[str, list[int]]:
    """By champion, at how many runs its looks were taken, as the session's tag says."""
    said = guarded.client.get_run(session).data.tags["canary.looks"]
    beside = dict(part.split(": ") for part in said.split("; "))
    return {champion: [int(look.split(".")[0]) for look in taken.split()] for champion, taken in beside.items()}
