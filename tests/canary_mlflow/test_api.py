"""The commands as functions: what they return is what the commands print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from recorded import Recorded

import canary_mlflow
from canary_mlflow.cli import canary
from canary_mlflow.reports.study import verdict_json


def printed(*words: str) -> tuple[int, Any]:
    """A command's exit code, and its JSON."""
    result = CliRunner().invoke(canary, [*words, "--json"], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout)


def plain(decision: Any) -> Any:
    return json.loads(verdict_json(decision))


def test_compare_is_the_command(recorded: Recorded) -> None:
    sides = [recorded.session(), recorded.session(slower=1.5)]
    found = canary_mlflow.compare(*sides, policy="smoke", tracking_uri=recorded.uri)
    assert (0, plain(found)) == printed("compare", *sides, "--policy", "smoke", "--tracking-uri", recorded.uri)
    assert found.word == "BLOCK"
    with pytest.raises(canary_mlflow.CanaryError, match="run 'nosuch': not in"):
        canary_mlflow.compare("nosuch", sides[0], tracking_uri=recorded.uri)


def test_gate_is_the_command_and_moves_the_champion(guarded: Recorded) -> None:
    blocked, good = guarded.version(slower=1.5), guarded.version()
    dry = canary_mlflow.gate(guarded.model, blocked, dry_run=True, tracking_uri=guarded.uri)
    words = ("gate", guarded.model, blocked, "--dry-run", "--tracking-uri", guarded.uri)
    assert (dry.exit_code, plain(dry)) == printed(*words)
    assert dry.exit_code == 1
    done = canary_mlflow.gate(guarded.model, int(good), tracking_uri=guarded.uri)
    assert (done.word, done.promoted, guarded.champion()) == ("PASS", True, good)
    with pytest.raises(canary_mlflow.CanaryError, match="version '99' of"):
        canary_mlflow.gate(guarded.model, 99, tracking_uri=guarded.uri)


def test_judge_and_replay_are_the_commands(runs: list[str]) -> None:
    found = canary_mlflow.judge(runs[:4], [Path(run) for run in runs[4:]], policy="smoke")
    words = ("judge", "--baseline", *runs[:4], "--candidate", *runs[4:], "--policy", "smoke")
    assert (found.exit_code, plain(found)) == printed(*words)
    one = canary_mlflow.replay(runs[0])
    assert printed("replay", runs[0]) == (0, [json.loads(json.dumps(one.to_dict()))])
    assert one.verdict == "healthy"
    with pytest.raises(canary_mlflow.CanaryError, match=r"nowhere\.csv"):
        canary_mlflow.replay("nowhere.csv")


def test_the_package_names_what_it_offers() -> None:
    assert set(canary_mlflow.__all__) <= set(dir(canary_mlflow))
    with pytest.raises(AttributeError, match="it has AccelerateTracker, CanaryCallback, CanaryError"):
        _ = canary_mlflow.nothing
