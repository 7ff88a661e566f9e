"""Compares two revisions of the code: fresh runs of both in turn, with the same seeds, judged in pairs."""

from __future__ import annotations

import filecmp
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow import tags
from canary_mlflow.ci.job import ci_tags
from canary_mlflow.errors import BrokeOff, NoSource, UsageError
from canary_mlflow.launching.composing import require_overrides
from canary_mlflow.launching.projects import launch
from canary_mlflow.launching.sources import Source, commit_of, installer, worktree
from canary_mlflow.registry.judging import records
from canary_mlflow.registry.judging.looks import Progress, Taken, evidence_of, looks_taken, note_look
from canary_mlflow.registry.sessions.leftovers import clear
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.reports.links import run_page
from canary_mlflow.tracking.reading.histories import session_runs
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import finish_session, get_run, held, open_session
from gates.judge import judge
from gates.model.policy import Policy
from gates.model.records import Version
from gates.model.verdict import Verdict
from gates.model.wording import listed
from gates.top_up import next_look, stays_open, to_run_again

if TYPE_CHECKING:
    from mlflow import MlflowClient

SIDES = ("baseline", "candidate")


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A revision: the user's name for it, and its commit."""

    name: str
    commit: str

    def __str__(self) -> str:
        return self.name if self.commit.startswith(self.name) else f"{self.name} ({self.commit[:10]})"


def resolve(project: Path, name: str, side: str) -> Revision:
    """The revision with this name. Raises UsageError if git does not know it."""
    if not name or name.startswith("-"):
        raise UsageError(f"--{side}: found {name!r}; expected a commit, branch or tag of this checkout")
    try:
        return Revision(name=name, commit=commit_of(project, name, f"--{side}"))
    except NoSource as error:
        raise UsageError(str(error)) from error


def first_pairs(policy: Policy) -> int:
    """The number of pairs at the first look, at least two: one tells nothing about the spread between pairs."""
    return next((runs for runs in policy.looks.runs if runs > 1), policy.looks.runs[-1])


@contextmanager
def checked_out(project: Path, revisions: dict[str, Revision], overrides: Sequence[str]) -> Iterator[dict[str, Source]]:
    """Side → its code, each in a separate worktree, for the length of a block.

    Raises UsageError for overrides that one of the two does not accept, before there is any run; NoSource.
    """
    with (
        worktree(project, revisions["baseline"].commit, "--baseline") as one,
        worktree(project, revisions["candidate"].commit, "--candidate") as other,
    ):
        sources = {
            side: Source(
                folder=folder,
                env_manager=manager_of(project, folder, f"--{side} {revisions[side]}"),
                commit=revisions[side].commit,
                here=False,
            )
            for side, folder in zip(SIDES, (one, other), strict=True)
        }
        for side, source in sources.items():
            require_overrides(source, overrides, f"--{side} {revisions[side]}")
        yield sources


@contextmanager
def open_trial(
    client: MlflowClient, sources: dict[str, Source], revisions: dict[str, Revision], overrides: Sequence[str]
) -> Iterator[Trial]:
    """A trial with a session for each side under one parent run, all ended afterwards."""
    name = " against ".join(str(revisions[side]) for side in reversed(SIDES))
    clear(client)
    parent = open_session(client, "canary", name, {tags.ROLE: "revisions", **ci_tags(os.environ)})
    sessions = {
        side: open_session(client, "canary", f"{side}: {revisions[side]}", {}, parent_id=parent) for side in SIDES
    }
    with ended_afterwards(client, (parent, *sessions.values())):
        yield Trial(client=client, parent=parent, sessions=sessions, sources=sources, overrides=shlex.join(overrides))


@contextmanager
def ended_afterwards(client: MlflowClient, run_ids: Sequence[str]) -> Iterator[None]:
    """Parent runs, the uppermost first, that are FINISHED after the block, or FAILED by what it raises."""
    status = "FAILED"
    try:
        with held(client, *run_ids):
            yield
        status = "FINISHED"
    finally:
        for run_id in reversed(run_ids):
            finish_session(client, run_id, status)


def manager_of(project: Path, folder: Path, whose: str) -> str:
    """`local` if a revision's pins are those of this checkout; else the manager that installs them."""
    name = "requirements.txt"
    if (folder / name).is_file() and (project / name).is_file():
        if filecmp.cmp(folder / name, project / name, shallow=False):
            return "local"
        return installer(whose)
    return "local"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Both sides of a comparison that is going on: side → its session, its code."""

    client: MlflowClient
    parent: str
    sessions: dict[str, str]
    sources: dict[str, Source]
    overrides: str

    def turns(self, wanted: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int, Callable[[], None]]]:
        """Runs by side and seed, each with a function that makes it, or raises BrokeOff if an exception ended it."""
        for side, seed in wanted:
            yield side, seed, partial(self.make, side, seed)

    def make(self, side: str, seed: int) -> None:
        """Make one run. Raises BrokeOff if an exception ended it."""
        launch(
            self.client,
            self.sources[side],
            self.sessions[side],
            name=f"{side} seed {seed}",
            role="run",
            seed=seed,
            overrides=self.overrides,
        )

    def versions(self) -> tuple[Version, Version]:
        """Both sides with the runs recorded so far."""
        baseline, candidate = (session_runs(self.client, self.sessions[side]) for side in SIDES)
        return (
            Version(model="", version=None, runs=baseline, beside=True),
            Version(model="", version=None, runs=candidate),
        )

    def lacking(self, pairs: int) -> list[tuple[str, int]]:
        """Side and seed of the runs that `pairs` pairs still need, in the order in which they are made (b c c b)."""
        there = {
            side: {run.seed for run in version.runs if run.completed or run.failure not in ("", "interrupted")}
            for side, version in zip(SIDES, self.versions(), strict=True)
        }
        turns = [(side, seed) for seed in range(pairs) for side in (SIDES if seed % 2 == 0 else reversed(SIDES))]
        return [(side, seed) for side, seed in turns if seed not in there[side]]


def carry_out(trial: Trial, policy: Policy, say: Callable[[str], None], until: int | None = None) -> Verdict:
    """Take look after look, from two pairs on, until they decide or cannot, or an exception leaves a side open. With
    `until`, take one look, at that many pairs."""
    taken = [look.runs for look in looks_taken(trial.client, trial.parent, SIDES[0])]
    pairs = until or next(runs for runs in policy.looks.left(taken) if runs >= first_pairs(policy))
    while True:
        stuck = make(trial, policy, pairs, say)
        verdict = look_at(trial, policy, pairs)
        if stuck:
            return verdict
        step = next_look(policy, verdict)
        say(f"look {verdict.look} of {len(policy.looks.runs)}, {pairs} pairs: {step.reason}")
        if step.look is None or until is not None:
            return verdict
        pairs = step.candidate_runs


def make(trial: Trial, policy: Policy, pairs: int, say: Callable[[str], None]) -> bool:
    """Make the runs that `pairs` pairs still need; return whether an exception leaves a side open, so that more runs
    would be in vain."""
    turns = trial.turns(trial.lacking(pairs))
    for _, both in groupby(turns, key=itemgetter(1)):  # both sides of a seed, then a look at them
        fine = [attempt(made, f"making a run of the {side}, seed {seed}", say) for side, seed, made in both]
        if not all(fine):
            make_again(trial, policy, say)
            if any(map(stays_open, trial.versions())):
                return True
    make_again(trial, policy, say)
    return False


def attempt(make: Callable[[], None], what: str, say: Callable[[str], None]) -> bool:
    """Make a run; return whether it ended without an exception."""
    say(what)
    try:
        make()
    except BrokeOff as error:
        say(str(error))
        return False
    return True


def look_at(trial: Trial, policy: Policy, pairs: int) -> Verdict:
    """Judge the existing runs with what earlier looks have left of the error levels, and record this look."""
    sides = trial.versions()
    evidence = evidence_of(run.run_id for side in sides for run in side.runs)
    now = Taken(runs=pairs, evidence=evidence)
    before = Progress(now=now, taken=looks_taken(trial.client, trial.parent, SIDES[0])).before
    look = policy.looks.reached(pairs, before)
    share, notes = policy.looks.share(look, before), list[str]()
    if not share:
        share = policy.looks.share_beyond(before)
        at = listed([str(runs) for runs in before])
        notes.append(
            f"the plan of looks was spent at {at} pairs: this look adds {share:.3g} of the error levels to it, and all "
            "looks beyond a plan no more than the plan itself"
        )
    verdict = judge(policy, *sides, look=look, share=share)
    note_look(trial.client, trial.parent, SIDES[0], now)
    return replace(verdict, notes=(*verdict.notes, *notes))


def make_again(trial: Trial, policy: Policy, say: Callable[[str], None]) -> None:
    """Repeat runs whose clock does not count, on either side."""
    while True:
        baseline, candidate = trial.versions()
        invalid = {
            "baseline": to_run_again(policy, candidate.runs, baseline),
            "candidate": to_run_again(policy, baseline.runs, candidate),
        }
        if not any(invalid.values()):
            return
        for side, seeds in invalid.items():
            for seed, reason in seeds.items():
                again = partial(trial.make, side, seed)
                attempt(again, f"making the {side}'s run of seed {seed} again: it {reason}", say)


def report(trial: Trial, revisions: dict[str, Revision], verdict: Verdict) -> Decision:
    """The decision, written on the parent run."""
    page = run_page(get_run(trial.client, trial.parent).info.experiment_id, trial.parent)
    decision = Decision(
        verdict=verdict,
        model="",
        question=Question.REVISIONS,
        session_id=trial.parent,
        store=without_password(trial.client.tracking_uri),
        page=page,
        baseline_label=str(revisions["baseline"]),
        candidate_label=str(revisions["candidate"]),
    )
    records.publish(trial.client, decision)
    return decision
