"""`canary judge`: two sides given as plain files, judged as the gate judges, without MLflow and without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import json_option, print_decision
from canary_mlflow.commands.words import ManyWords
from canary_mlflow.edge import EXIT_CODES

if TYPE_CHECKING:
    from canary_mlflow.reports.decision import Decision
    from gates import Policy, Version


@click.command(cls=ManyWords, epilog=EXIT_CODES)
@click.option("--baseline", multiple=True, required=True, metavar="FILE…", help="Runs of what was good so far.")
@click.option("--candidate", multiple=True, required=True, metavar="FILE…", help="Runs of the change.")
@click.option("--policy", required=True, metavar="NAME|PATH", help="smoke, perf, nightly, or a YAML file.")
@json_option
@click.pass_context
def judge(
    ctx: click.Context, baseline: tuple[str, ...], candidate: tuple[str, ...], policy: str, as_json: bool
) -> None:
    """Judge CANDIDATE files against BASELINE files.

    One file is one run: JSONL or CSV with a row per step (step, step_time in seconds, loss, …), or trainer_state.json.
    What a run has once (eval_loss, peak_memory, seed, completed, failure, workload, hardware) stands in a JSON of the
    same name beside it.
    """
    from canary_mlflow.files.runs import read_side
    from canary_mlflow.policies import load_policy

    rules = load_policy(policy)
    left, left_notes = read_side([Path(word) for word in baseline])
    right, right_notes = read_side([Path(word) for word in candidate])
    decision = decide(rules, left, right, (*left_notes, *right_notes))
    print_decision(decision, as_json)
    ctx.exit(decision.exit_code)


def decide(policy: Policy, baseline: Version, candidate: Version, notes: Sequence[str] = ()) -> Decision:
    """The verdict on two sides read from files, with what the readers noted."""
    from canary_mlflow.reports.decision import Decision, Question
    from canary_mlflow.reports.figures import count
    from gates import judge as weigh_up

    verdict = weigh_up(policy, baseline, candidate)
    return Decision(
        verdict=replace(verdict, notes=(*verdict.notes, *_without_fresh_runs(policy), *notes)),
        model="",
        question=Question.FILES,
        baseline_label=count(len(baseline.runs), "baseline file"),
        candidate_label=count(len(candidate.runs), "candidate file"),
    )


def _without_fresh_runs(policy: Policy) -> Iterator[str]:
    """What the policy's plan would have done about machines that are slower on one day than on another."""
    from gates.looks import FreshBaseline

    if policy.looks.fresh_baseline is FreshBaseline.ALWAYS:
        yield (
            f"policy {policy.name} judges speed beside fresh runs of the baseline, which files do not have: a machine "
            "that is slower today counts as the candidate's doing; make the files of both sides in turn"
        )
