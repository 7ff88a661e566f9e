"""One session: a fresh process per seed, then the registry, the gate and the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path

from mlflow import MlflowClient

from canary_mlflow.analysis.reading import publish_study
from canary_mlflow.commands.shared import print_decision
from canary_mlflow.errors import CanaryError
from canary_mlflow.launching.added_runs import AddedRuns, run_champion
from canary_mlflow.launching.cluster import runner_at
from canary_mlflow.launching.fail_fast import FailFast
from canary_mlflow.launching.plan import Plan
from canary_mlflow.launching.runs import Result, Runner, make_one
from canary_mlflow.notify.delivery import tell
from canary_mlflow.notify.events import of_decision
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.evidence import champion_runs
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.registry.judging.unregistered import champion_or_none, gate_change, gate_session
from canary_mlflow.registry.sessions.leftovers import clear
from canary_mlflow.registry.sessions.registering import register_version
from canary_mlflow.registry.sessions.rows import begin, record_runs
from canary_mlflow.registry.versions import Weights
from canary_mlflow.reports.decision import Decision
from canary_mlflow.shown import say
from canary_mlflow.tags import SEEDS
from canary_mlflow.tracking.reading.histories import read_version
from canary_mlflow.tracking.stores.session import finish_session, held, open_session
from canary_mlflow.tracking.stores.store import prepare_store
from canary_mlflow.training.ahead import first_runs
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.naming import choose_model_name, session_name, session_tags
from canary_mlflow.training.plain import to_plain
from canary_mlflow.training.preflight import runs_of
from canary_mlflow.training.process import OwnRun, Worker
from canary_mlflow.training.runs import code_of, own_run, own_runs, prepared, prestarted, until_broken


def run_session(config: CanaryConfig, scratch: Path, begun: Iterator[Worker] | None = None) -> int:
    """Train every seed, register the version, gate it against the champion. Returns the exit code. `begun`: the
    processes of its first runs, if they load already.

    The data is prepared in the first run's process before the session is opened: data that cannot be trained on, or
    work that cannot be compared with the champion's, raises UsageError before anything is recorded.
    """
    client, planned = prepare_store(config.tracking.uri), first_runs(config)
    with (
        runner_at(config.launcher.name, client, lambda: to_plain(config), say) as runner,
        prestarted(runner, config, scratch, planned, begun) as starting,
    ):
        work = prepared(starting, client, config)
        if work.failure:
            raise SetupError(work.reason)
        model = choose_model_name(client, config, work.workload)
        if work.note:
            say(f"note: {work.note}")
        clear(client)
        seeds = " ".join(str(config.seed + index) for index in range(planned))
        tags = {**session_tags(config, model), SEEDS: seeds}
        session = open_session(client, config.tracking.experiment, session_name(config), tags)
        begin(client, session, model)
        with held(client, session):
            return Session(client, session, model, config, scratch, runner).train_and_judge(starting, planned)


@dataclass(frozen=True)
class Session:
    """A session that is open. `scratch`: the folder for its runs' files."""

    client: MlflowClient
    session_id: str
    model: str
    config: CanaryConfig
    scratch: Path
    runner: Runner

    def train_and_judge(self, starting: Runner, planned: int) -> int:
        """Make its runs, the first with `starting`, judge them, and end it. Returns the exit code."""
        code, ended_well, recorded = 4, False, False
        try:
            results, remarks = self.first_runs(starting, planned)
            again, lost = self.recheck(results[-1])
            results += again
            if lost:
                remarks.append(f"the champion's code could not be run for comparison: {lost}")
            self.record_runs()
            recorded = True
            ended = max(code_of(result) for result in results)
            if ended in (0, 1, 3):
                decision = self.register_and_gate(results, remarks)
                print_decision(decision, full=self.config.tracking.full_report)
                tell({decision.word.upper(), self.config.tier.name.upper()}, partial(of_decision, decision))
                publish_study(self.client, decision)
                ended = decision.exit_code
            else:
                _say_broken(results)
            code = ended  # only now: anything that breaks earlier leaves a FAILED session
            ended_well = code == 0 or (code == 3 and not any(map(code_of, results)))
        except CanaryError as error:
            code = error.exit_code
            raise
        finally:
            if not recorded:  # the session broke off, which is also an end to record
                self.record_runs()
            finish_session(self.client, self.session_id, "FINISHED" if ended_well else "FAILED")
        return code

    def record_runs(self) -> None:
        """Let the ledger name the runs that were made since it last did."""
        record_runs(self.client, self.session_id, self.model)

    def first_runs(self, starting: Runner, planned: int) -> tuple[list[Result], list[str]]:
        """The runs before the first verdict: as planned, and all of them if the model has no champion. A first version
        has nothing to be compared with, and becomes the baseline of all that follow. Also what was saved by ending
        before that."""
        champion = champion_runs(self.client, self.model)
        client, session = self.client, self.session_id
        watched = own_runs(
            client, session, self.config, planned, keep_weights=True, profile=True, champion_runs=champion,
            fail_fast=self.early.in_first_steps,
        )  # fmt: skip
        results = until_broken(starting, watched, self.early.certain)
        missing = runs_of(self.config) - len(results)
        if not (champion or results[-1].failure or results[-1].certain or missing <= 0):
            later, planned = replace(self.config, seed=self.config.seed + len(results)), runs_of(self.config)
            with prestarted(self.runner, later, self.scratch, missing) as runner:
                results += until_broken(runner, own_runs(client, session, later, missing), self.early.certain)
        last, end = results[-1], self.config.seed + planned
        if not last.certain and code_of(last) != 1:
            return results, []
        said = self.early.saved(last.run_id, last.certain, range(last.seed + 1, end), champion)
        say(said)
        return results, [said]

    @cached_property
    def early(self) -> FailFast:
        """What ends it before its time."""
        return FailFast.of(self.client, self.model, self.session_id, self.config.gate)

    def one_more(self, seed: int, folder: str, place: str) -> OwnRun:
        """A run that is added to it."""
        seeded = replace(self.config, seed=seed)
        return own_run(self.client, self.session_id, seeded, place, folder=str(self.scratch / folder))

    def recheck(self, broken: Result) -> tuple[list[Result], str]:
        """Find out what caused an exception that ended a run: make the run again, and the champion's code beside it.

        Returns the repeated run, if one was made, and why the champion's code was not available ('' if it was, or was
        not needed). The gate judges what they mean."""
        raised, seed = broken.raised, broken.seed
        if broken.failure != "error" or raised is None or raised.outside:
            return [], ""
        say(f"{raised} ended the run of seed {seed}; making it again")
        again = make_one(self.runner, self.one_more(seed, "again", "again"))
        champion = champion_or_none(self.client, self.model)
        if (again.failure, again.raised) != (broken.failure, raised) or champion is None:
            return [again], ""
        say(f"{raised} ended it again; making a run of champion version {champion}, seed {seed}")
        with AddedRuns(self.client, self.session_id, "this session") as added:
            runs = read_version(self.client, self.model, champion, metrics=()).runs
            return [again], run_champion(added, self.runner, champion, runs, seed)

    def register_and_gate(self, results: list[Result], remarks: Sequence[str]) -> Decision:
        """Register what the session trained and gate it; a session that ended before its time has nothing to register.
        `remarks`: more notes of the verdict."""
        client, model, config, policy = self.client, self.model, self.config, load_policy(self.config.gate)
        if any(result.failure or result.certain for result in results):  # a version has a run of each planned seed
            return gate_session(client, model, self.session_id, policy, *remarks)
        if not config.register:
            return gate_change(client, model, self.session_id, policy, *remarks)
        version = register_version(
            client,
            model,
            self.session_id,
            results[0].run_id,
            weights=Weights.NONE if config.tracking.weights == "none" else Weights.FILES,
            evaluation=results[0].evaluation,
        )
        policy = self.early.policy  # the gate uses that of the registry, so the plan of looks must too
        number, subject = count(1), f"{model} version {version}"

        def running(seed: int) -> OwnRun:
            made = next(number)
            return self.one_more(seed, f"added-{made}", f"added {made}")

        with AddedRuns(client, self.session_id, subject, running=running) as added:
            plan = Plan(
                client=client, model=model, version=version, policy=policy, added=added, runner=self.runner, say=say
            )
            if policy.top_up:
                return plan.carry_out()
            plan.make_again()
        self.record_runs()
        return gate(client, model, version, load_policy(config.gate))


def _say_broken(results: list[Result]) -> None:
    for result in results:
        if result.failure:
            say(
                f"the run with seed {result.seed} broke off ({result.failure}): {result.reason}; "
                "no version was registered"
            )
