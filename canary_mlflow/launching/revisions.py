"""Compares two revisions of the code: fresh runs of both in turn, with the same seeds, judged in pairs."""

from __future__ import annotations

import filecmp
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from canary_mlflow import tags
from canary_mlflow.ci import ci_tags
from canary_mlflow.errors import BrokeOff, NoSource, UsageError, one_line
from canary_mlflow.files.documents import parse_yaml
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.policy import Policy, policy_to_dict
from canary_mlflow.gates.model.records import Version
from canary_mlflow.gates.model.verdict import Verdict
from canary_mlflow.gates.model.wording import counted, listed
from canary_mlflow.gates.top_up import certain, next_look, stays_open, to_run_again
from canary_mlflow.interpreter import CHOSEN
from canary_mlflow.launching.projects import ProjectRun
from canary_mlflow.launching.runs import Result, Runner, RunSpec, make_one
from canary_mlflow.launching.sources import PATIENCE, Source, commit_of, installer, worktree
from canary_mlflow.registry.judging import records
from canary_mlflow.registry.judging.looks import Progress, Taken, evidence_of, looks_taken, note_look
from canary_mlflow.registry.sessions.leftovers import clear
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.reports.links import run_page
from canary_mlflow.tracking.reading.histories import session_runs
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import finish_session, get_run, held, log_tags, open_session

if TYPE_CHECKING:
    from mlflow import MlflowClient

SIDES = ("baseline", "candidate")
POLICY_FILE = "policy.yaml"


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
                project=project,
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
    client: MlflowClient,
    sources: dict[str, Source],
    revisions: dict[str, Revision],
    overrides: tuple[str, ...],
    policy: Policy,
) -> Iterator[Trial]:
    """A trial with a session for each side under one parent run, all ended afterwards."""
    name = " against ".join(str(revisions[side]) for side in reversed(SIDES))
    clear(client)
    parent = open_session(client, "canary", name, {tags.ROLE: "revisions", **ci_tags(os.environ)})
    sessions = {
        side: open_session(client, "canary", f"{side}: {revisions[side]}", {}, parent_id=parent) for side in SIDES
    }
    trial = Trial(
        client=client,
        parent=parent,
        revisions=revisions,
        sessions=sessions,
        overrides=overrides,
        policy=policy,
        sources=sources,
    )
    with ended_afterwards(client, (parent, *sessions.values())):
        keep(trial)
        yield trial


def keep(trial: Trial) -> None:
    """Record what a continuation needs: commits, because branches move, and the whole policy, because files change."""
    names = {f"{tags.OURS}{side}": f"{trial.revisions[side].name} {trial.revisions[side].commit}" for side in SIDES}
    log_tags(trial.client, trial.parent, {**names, tags.OVERRIDES: shlex.join(trial.overrides)})
    policy = yaml.safe_dump(policy_to_dict(trial.policy), sort_keys=False)
    trial.client.log_text(trial.parent, policy, POLICY_FILE)
    for side, session in trial.sessions.items():
        log_tags(trial.client, session, {tags.SIDE: side})


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


def require_overrides(source: Source, overrides: Sequence[str], whose: str) -> None:
    """Raise UsageError for overrides that the code there refuses, with its message, before anything is made.

    Only if this Python runs that code: another environment reports it in its first run.
    """
    if source.env_manager == "local":
        _compose(source, overrides, whose)


def composed(source: Source, overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration that the code there makes from overrides; empty if this Python does not run that code. Raises
    UsageError."""
    if source.env_manager != "local":
        return {}
    found = parse_yaml(_compose(source, overrides, "overrides"))
    return found if isinstance(found, dict) else {}


def _compose(source: Source, overrides: Sequence[str], whose: str) -> str:
    path = os.pathsep.join([str(source.folder), os.environ.get("PYTHONPATH", "")])
    try:
        found = subprocess.run(
            [sys.executable, "-m", "training", *overrides, "--cfg", "job", "--resolve"],
            cwd=source.folder,
            env={**os.environ, "PYTHONPATH": path, CHOSEN: source.env_manager},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{whose}: its overrides could not be tried: {one_line(error)}; try again") from error
    if found.returncode == UsageError.exit_code:
        words = found.stderr.strip().splitlines() or ["its overrides were refused"]
        raise UsageError(f"{whose}: {words[-1].removeprefix('canary: ')}")
    return found.stdout


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A comparison that was begun: of both sides the revision, the session and, while it goes on, the code; the
    overrides and the policy of both."""

    client: MlflowClient
    parent: str
    revisions: dict[str, Revision]
    sessions: dict[str, str]
    overrides: tuple[str, ...]
    policy: Policy
    sources: dict[str, Source] = field(default_factory=dict)

    def spec(self, side: str, seed: int) -> RunSpec:
        """A run of one side."""
        return ProjectRun(
            name=f"{side} seed {seed}",
            store=self.client.tracking_uri,
            session=self.sessions[side],
            seed=seed,
            source=self.sources[side],
            overrides=shlex.join(self.overrides),
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


def carry_out(trial: Trial, runner: Runner, say: Callable[[str], None], until: int | None = None) -> Verdict:
    """Take look after look, from two pairs on, until they decide or cannot, or an exception leaves a side open. With
    `until`, take one look, at that many pairs."""
    policy, taken = trial.policy, [look.runs for look in looks_taken(trial.client, trial.parent, SIDES[0])]
    pairs = until or next(runs for runs in policy.looks.left(taken) if runs >= first_pairs(policy))
    while True:
        stuck = make(trial, runner, pairs, say)
        verdict = look_at(trial, pairs)
        if stuck:
            return verdict
        step = next_look(policy, verdict)
        say(f"look {verdict.look} of {len(policy.looks.runs)}, {pairs} pairs: {step.reason}")
        if step.look is None or until is not None:
            return verdict
        pairs = step.candidate_runs


def make(trial: Trial, runner: Runner, pairs: int, say: Callable[[str], None]) -> bool:
    """Make the runs that `pairs` pairs still need; return whether more runs would be in vain: an exception leaves a
    side open, or the candidate fails whatever they show."""
    lacking = trial.lacking(pairs)
    left, broken = Counter(seed for _, seed in lacking), set[int]()
    for spec, result in runner.make(_wanted(trial, lacking, say)):
        left[spec.seed] -= 1
        if not _went_well(spec, result, say):
            broken.add(spec.seed)
        if spec.seed in broken and not left[spec.seed]:  # both sides of a seed are made, then a look at them
            make_again(trial, runner, say)
            if any(map(stays_open, trial.versions())):
                return True
        missing = sum(left.values())
        pair_over = trial.policy.fail_fast and missing and not left[spec.seed]
        if pair_over and (why := certain(trial.policy, *trial.versions(), missing, by_plan=True)):
            say(f"{why} blocks already: {counted(missing, 'run')} not made")
            return True
    make_again(trial, runner, say)
    return False


def _wanted(trial: Trial, lacking: Sequence[tuple[str, int]], say: Callable[[str], None]) -> Iterator[RunSpec]:
    for side, seed in lacking:
        say(f"making a run of the {side}, seed {seed}")
        yield trial.spec(side, seed)


def _went_well(spec: RunSpec, result: Result, say: Callable[[str], None]) -> bool:
    """Whether a run ended without an exception of its code. Raises CanaryError for what else ended it."""
    try:
        result.require_end(spec)
    except BrokeOff as error:
        say(str(error))
        return False
    return True


def look_at(trial: Trial, pairs: int) -> Verdict:
    """Judge the existing runs with what earlier looks have left of the error levels, and record this look."""
    sides, policy = trial.versions(), trial.policy
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


def make_again(trial: Trial, runner: Runner, say: Callable[[str], None]) -> None:
    """Repeat runs whose clock does not count, on either side."""
    while True:
        baseline, candidate = trial.versions()
        invalid = {
            "baseline": to_run_again(trial.policy, candidate.runs, baseline),
            "candidate": to_run_again(trial.policy, baseline.runs, candidate),
        }
        if not any(invalid.values()):
            return
        for side, seeds in invalid.items():
            for seed, reason in seeds.items():
                say(f"making the {side}'s run of seed {seed} again: it {reason}")
                spec = trial.spec(side, seed)
                _went_well(spec, make_one(runner, spec), say)


def report(trial: Trial, verdict: Verdict) -> Decision:
    """The decision, written on the parent run."""
    page = run_page(get_run(trial.client, trial.parent).info.experiment_id, trial.parent)
    decision = Decision(
        verdict=verdict,
        model="",
        question=Question.REVISIONS,
        session_id=trial.parent,
        store=without_password(trial.client.tracking_uri),
        page=page,
        baseline_label=str(trial.revisions["baseline"]),
        candidate_label=str(trial.revisions["candidate"]),
    )
    records.publish(trial.client, decision)
    return decision
