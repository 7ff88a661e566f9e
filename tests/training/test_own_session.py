"""A session with your own data and reward, run by the command that a user types, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from workplace import Workplace

REWARDS = '''
def shares_letters(prompts, completions, answer):
    """Pays for letters of the right answer."""
    return [float(len(set(text) & set(right))) for text, right in zip(completions, answer, strict=True)]


def forgets(completions, **columns):
    return [None for _ in completions]
'''
GRPO = ("algo=grpo", "tier=smoke", "hardware=cpu", "data=hub", "data.path=rows.jsonl", "data.columns.prompt=question")


@pytest.fixture
def place(workplace: Workplace) -> Path:
    rows = [{"question": f"how many is {at}?", "answer": f" {at} of them"} for at in range(40)]
    (workplace.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (workplace.folder / "my_rewards.py").write_text(REWARDS)
    return workplace.folder


def paid(name: str) -> tuple[str, str]:
    return "algo.reward.kind=function", f"algo.reward.path=my_rewards:{name}"


@pytest.mark.full  # every day in parts: tests/training/test_own_reward.py, and test_workload.py for the exit code
def test_what_does_not_fit_ends_with_2_in_one_line_and_nothing_is_recorded(workplace: Workplace, place: Path) -> None:
    done = workplace.train(*GRPO, *paid("forgets"), "repeats=1", HF_DATASETS_CACHE=str(place / "cache"))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "my_rewards:forgets: score 1 of 4 is None; expected a number" in done.stderr
    client = MlflowClient(workplace.uri)
    assert client.search_experiments(filter_string="name = 'canary'") == []
    assert client.search_registered_models() == []


@pytest.mark.full  # every day in parts: above, tests/training/test_own_reward.py and test_any_data.py
def test_a_session_bootstraps_and_a_changed_reward_is_other_work(workplace: Workplace, place: Path) -> None:
    words = (*GRPO, *paid("shares_letters"), "algo.reward.scale=1", "repeats=2")
    first = workplace.train(*words, HF_DATASETS_CACHE=str(place / "cache"))
    assert first.returncode == 0, first.stderr
    (model,) = MlflowClient(workplace.uri).search_registered_models()
    assert model.name.startswith("grpo-tiny-neox-rows-smoke-")
    assert "champion" in model.aliases
    (place / "my_rewards.py").write_text(REWARDS.replace("float(len", "2.0 * float(len"))
    changed = workplace.train(*words, "register=false", HF_DATASETS_CACHE=str(place / "cache"))
    assert (changed.returncode, len(changed.stderr.splitlines())) == (2, 1), changed.stderr
    assert "its champion did other work (reward_revision " in changed.stderr
