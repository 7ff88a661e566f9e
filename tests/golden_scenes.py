"""Decisions of every kind, made without a store: what their reports say stands in tests/golden."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from canary_mlflow.gates import Version, judge
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.watch import Level, WatchWarning
from canary_mlflow.policies import load_policy
from canary_mlflow.reports.decision import Decision, HeldBy, Hold, Question, RunWarning
from canary_mlflow.reports.markdown import render as as_markdown
from canary_mlflow.reports.terminal import render as as_text
from canary_mlflow.reports.view import view_of
from canary_mlflow.shown import json_text

FORMS: dict[str, Callable[[Decision], str]] = {
    "txt": as_text,
    "full.txt": lambda decision: as_text(decision, full=True),
    "md": as_markdown,
    "card.json": lambda decision: json_text(view_of(decision).card_to_dict()),
}
"""Suffix → how a decision is written; the card is what pages and the HTML report show of it."""


@cache
def made() -> ModuleType:
    """tests/gates/conftest.py, which makes versions of runs."""
    spec = importlib.util.spec_from_file_location("gate_versions", Path(__file__).parent / "gates" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def version(name: str, **changes: Any) -> Version:
    found: Version = made().build_version(name, **changes)
    return found


def decided(policy: Policy, baseline: Version | None, candidate: Version, **more: Any) -> Decision:
    """What the gate makes of it; `more` as Decision has it."""
    verdict = judge(policy, baseline, candidate)
    usual = {"model": "canary", "version": "2", "champion_before": "1" if baseline else None, "session_id": "s2"}
    usual |= {"champion_after": "2" if str(verdict.outcome) == "PASS" else usual["champion_before"]}
    usual |= {"promoted": str(verdict.outcome) == "PASS", "baseline_label": "version 1", "store": "sqlite:///mlflow.db"}
    return Decision(verdict=verdict, **{**usual, **more})


def scenes() -> Iterator[tuple[str, Decision]]:
    """Name → decision."""
    smoke, perf = (replace(load_policy(name), priors=()) for name in ("smoke", "perf"))
    old = version("1")
    yield "pass", decided(smoke, old, version("2"))
    yield "bootstrap", decided(smoke, None, version("2"), bootstrapped=True, promoted=True, champion_after="2")
    yield "no-baseline", decided(smoke, None, version("2"))
    yield "slower", decided(smoke, old, version("2", factor={"step_time": 1.4}))
    yield "worse-loss", decided(smoke, old, version("2", factor={"eval_loss": 1.3, "loss": 1.2}))
    yield "nan", decided(smoke, old, broken(version("2")))
    yield "not-learned", decided(smoke, old, not_learned(version("2")))
    yield "other-work", decided(smoke, old, version("2", workload={"algo": "sft", "max_steps": "100"}))
    yield "too-few-runs", decided(smoke, old, version("2", count=1))
    yield "memory", decided(perf, version("1", count=5), version("2", count=5, factor={"peak_memory": 1.5}))
    yield "changed", decided(smoke, named(old, "1.15.0"), named(version("2", factor={"step_time": 1.3}), "1.16.0"))
    yield "held", decided(smoke, old, version("2"), promoted=False, champion_after="1", holds=(HELD,))
    yield "dry-run", decided(smoke, old, version("2"), dry_run=True, promoted=False, champion_after="1")
    yield "watched", decided(smoke, old, version("2"), warnings=(WARNED,))
    yield "files", decided(smoke, old, version("2"), question=Question.FILES, model="", version=None, store="",
                           promoted=False, champion_before=None, champion_after=None)  # fmt: skip


HELD = Hold(by=HeldBy.CODE, reason="its policy refuses files that can run code when they are loaded")
WARNED = RunWarning(
    run="seed 1",
    warning=WatchWarning(
        level=Level.CRITICAL, step=40, stream="kl", rule="level", seen="12.5, far above 3.1",
        meaning="the policy leaves its reference", advice="raise the weight of the KL",
    ),
)  # fmt: skip


def broken(made_version: Version) -> Version:
    """With a NaN in its first run."""
    first, *others = made_version.runs
    series = {**first.series, "loss": made().series("loss", [*first.series["loss"].values[:30], float("nan")])}
    odd = replace(first, nan_steps=1, series=series, completed=False, failure="instability",
                  failure_reason="loss is NaN at step 31", last_step=31)  # fmt: skip
    return replace(made_version, runs=(odd, *others))


def not_learned(made_version: Version) -> Version:
    told = "no learning: loss 0.69 to 0.69"
    return replace(
        made_version, runs=tuple(replace(run, learned=False, learned_reason=told) for run in made_version.runs)
    )


def named(made_version: Version, trl: str) -> Version:
    """Its runs were made with that release, on one commit."""
    environment = {"trl": trl, "git_commit": "a" * 40, "git_dirty": "false"}
    return replace(made_version, runs=tuple(replace(run, environment=environment) for run in made_version.runs))
