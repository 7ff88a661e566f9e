"""One session: a fresh process per seed, then the registry, the gate and the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from mlflow import MlflowClient

from canary_mlflow.analysis.publishing import publish_study
from canary_mlflow.commands.shared import print_decision
from canary_mlflow.errors import CanaryError
from canary_mlflow.launching.plan import Plan
from canary_mlflow.notify.delivery import tell
from canary_mlflow.notify.events import of_decision
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.evidence import champion_runs
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.registry.judging.unregistered import gate_change, gate_session
from canary_mlflow.registry.policies.asked import governing_policy
from canary_mlflow.registry.sessions.leftovers import clear
from canary_mlflow.registry.sessions.new_version import register_version
from canary_mlflow.registry.sessions.rows import begin, record_runs
from canary_mlflow.registry.versions import Weights
from canary_mlflow.reports.decision import Decision
from canary_mlflow.shown import say
from canary_mlflow.tags import SEEDS
from canary_mlflow.tracking.stores.session import finish_session, held, open_session
from canary_mlflow.tracking.stores.store import prepare_store
from training.ahead import first_runs
from training.checks import runs_of
from training.config import CanaryConfig
from training.crews import Crew, crew_for
from training.errors import SetupError
from training.in_session import maker_in_session
from training.naming import choose_model_name, session_name, session_tags
from training.process import Result, Worker
from training.recheck import recheck
from training.runs import code_of


def run_session(config: CanaryConfig, scratch: Path, begun: Iterator[Worker] | None = None) -> int:
    """Train every seed, register the version, gate it against the champion. Returns the exit code. `begun`: the
    processes of its first runs, if they load already.

    The data is prepared in the first run's process before the session is opened: data that cannot be trained on, or
    work that cannot be compared with the champion, raises UsageError before anything is recorded.
    """
    with crew_for(config, scratch, first_runs(config), begun) as crew:
        client = prepare_store(config.tracking.uri)
        prepared = crew.prepared
        if prepared.refusal:
            raise SetupError(prepared.refusal)
        model = choose_model_name(client, config, prepared.workload)
        if prepared.note:
            say(f"note: {prepared.note}")
        clear(client)
        seeds = " ".join(str(config.seed + index) for index in range(first_runs(config)))
        tags = {**session_tags(config, model), SEEDS: seeds}
        session = open_session(client, config.tracking.experiment, session_name(config), tags)
        begin(client, session, model)
        with held(client, session):
            return _train_and_judge(client, session, model, config, crew, scratch)


def _train_and_judge(
    client: MlflowClient, session: str, model: str, config: CanaryConfig, crew: Crew, scratch: Path
) -> int:
    code, recorded = 4, False
    try:
        champion = champion_runs(client, model)
        results = crew.train(client, session, config, first_runs(config), champion)
        if not champion:
            results += _remaining_runs(client, session, config, results, scratch)
        again, lost = recheck(client, session, model, config, results[-1], scratch)
        results += again
        record_runs(client, session, model)
        recorded = True
        ended = max(code_of(result) for result in results)
        if ended in (0, 1, 3):
            decision = register_and_gate(client, model, session, config, results, scratch, lost)
            print_decision(decision, full=config.tracking.full_report)
            tell({decision.word.upper(), config.tier.name.upper()}, partial(of_decision, decision))
            publish_study(client, decision)
            ended = decision.exit_code
        else:
            _say_broken(results)
        code = ended  # only now: anything that breaks earlier leaves a FAILED session
    except CanaryError as error:
        code = error.exit_code
        raise
    finally:
        if not recorded:  # the session broke off, which is also an end to record
            record_runs(client, session, model)
        finish_session(client, session, "FINISHED" if code == 0 else "FAILED")
    return code


def _remaining_runs(
    client: MlflowClient, session: str, config: CanaryConfig, results: list[Result], scratch: Path
) -> list[Result]:
    """The runs that a session with top-up has not made yet, if its model has no champion: a first version has nothing
    to be compared with, and becomes the baseline of all that follow."""
    missing = runs_of(config) - len(results)
    if results[-1].failure or missing <= 0:
        return []
    later = replace(config, seed=config.seed + len(results))
    with crew_for(later, scratch, missing) as crew:
        return crew.train(client, session, later, missing, first=False)


def register_and_gate(
    client: MlflowClient,
    model: str,
    session: str,
    config: CanaryConfig,
    results: list[Result],
    scratch: Path,
    lost: str,
) -> Decision:
    """Register what the session trained and gate it; a session that broke off has nothing to register. `lost`: why the
    champion's code could not be run beside the runs that broke off."""
    policy = load_policy(config.gate)
    if any(result.failure for result in results):
        return gate_session(client, model, session, policy, lost)
    if not config.register:
        return gate_change(client, model, session, policy)
    version = register_version(
        client,
        model,
        session,
        results[0].run_id,
        weights=Weights.NONE if config.tracking.weights == "none" else Weights.FILES,
        evaluation=results[0].evaluation,
    )
    subject = f"{model} version {version}"
    if governing := governing_policy(client, model):  # the gate uses it, so the plan of looks must too
        policy = governing.policy
    with maker_in_session(client, session, subject, config, scratch) as maker:
        plan = Plan(client=client, model=model, version=version, policy=policy, maker=maker, say=say)
        if policy.top_up:
            return plan.carry_out()
        plan.make_again()
    record_runs(client, session, model)
    return gate(client, model, version, load_policy(config.gate))


def _say_broken(results: list[Result]) -> None:
    for result in results:
        if result.failure:
            say(
                f"the run with seed {result.seed} broke off ({result.failure}): {result.reason}; "
                "no version was registered"
            )
