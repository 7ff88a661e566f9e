"""Plans of looks whose runs are recorded at a given speed, for tests of what is made and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mlflow.entities import Metric
from recorded import RAISED

from canary_mlflow.errors import BrokeOff, CanaryError, NoSource
from canary_mlflow.launching.makers import Made, OneByOne
from canary_mlflow.launching.missing_runs import Turn
from canary_mlflow.launching.plan import Plan
from canary_mlflow.policies import load_policy
from canary_mlflow.tags import BASELINE_OF
from gates.model.policy import FreshBaseline, Policy, WithoutSource


@dataclass
class Recording(OneByOne):
    """Makes recorded runs, as fast as it is told."""

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

    def candidate(self, seed: int) -> None:
        self.call(f"c{seed}")
        if seed in self.failing:
            self.recorded.client.set_terminated(self.record(seed, 1.0, {"canary.failure": "error"}), "FAILED")
            raise CanaryError(f"seed {seed}: run broke off (error)")
        if seed in self.diverging:
            self.recorded.run(self.session, seed, slower=1.0, tags={}, nan_at=20, without=())
            return
        if seed in self.raising:
            raise BrokeOff(f"seed {seed}: run broke off (error)", self.record(seed, 1.0, RAISED))
        run_id = self.record(seed, self.slower * self.today, {"canary.env.host": self.host})
        if self.sentinels:
            beat(self.recorded, run_id, self.sentinels[min(len(self.calls), len(self.sentinels)) - 1])

    def prepare_fresh(self, champion: str, runs: Any) -> None:
        if self.lost:
            raise NoSource(f"champion version {champion}: {self.lost}")

    def fresh(self, champion: str, seed: int) -> None:
        self.call(f"b{seed}")
        if seed in self.unfresh:
            raise NoSource(f"champion version {champion}: run of seed {seed} broke off (error)")
        self.recorded.fresh(self.session, seed, self.today, {"canary.baseline_of": champion})


class AtOnce(Recording):
    """Makes the runs of a look side by side, as on a cluster: all have ended before the first turn comes, and a fresh
    run is marked as one in its own turn."""

    at_once = True

    def turns(self, wanted: Any, champion: str | None) -> Iterator[tuple[Turn, int, Made]]:
        ended = []
        for turn, seed in wanted:
            if turn is Turn.CANDIDATE:
                self.candidate(seed)
                ended.append((turn, seed, lambda: None))
            else:
                run_id = self.recorded.fresh(self.session, seed, self.today)
                mark = partial(self.recorded.client.set_tag, run_id, BASELINE_OF, champion)
                ended.append((turn, seed, mark))
        yield from ended


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
    version = guarded.register(session)
    return Plan(
        client=guarded.client,
        model=guarded.model,
        version=version,
        policy=policy,
        maker=maker(guarded, session, host, **making),
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
