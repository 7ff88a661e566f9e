"""Your own rewards: a function by its import path, several with weights, and what is refused in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_runs import ForkedRuns

from canary_mlflow.errors import UsageError
from canary_mlflow.training import reward_sources
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.devices import Device
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.parts import prepare_inputs
from canary_mlflow.training.plain import read_back, to_plain
from canary_mlflow.training.preflight import preflight
from canary_mlflow.training.rewards import Answers, rewards_of, sum_of
from canary_mlflow.training.workload import describe

MODULE = '''
"""Rewards for tests."""


def short(completions, **columns):
    """One for an empty answer, less for a longer one."""
    return [1 / (1 + len(text)) for text in completions]


def beside_chosen(prompts, completions, chosen):
    assert len(prompts) == len(completions) == len(chosen)
    return [float(len(set(one) & set(other))) for one, other in zip(completions, chosen)]


def none(completions, **_): return [None] * len(completions)
def nan(completions, **_): return [float("nan")] * len(completions)
def few(completions, **_): return [1.0]
def number(completions, **_): return 1.0
def words(completions, **_): return ["good"] * len(completions)
def asks(completions, solution): return [0.0] * len(completions)
def breaks(completions, **columns): return columns["solution"]
def leaves(completions): raise SystemExit("no key")
def by_position(completions, /): return [0.0] * len(completions)
async def later(completions, **_): return [0.0] * len(completions)
TEXT = "no function"
'''
GROUPS = ["train.batch_size=8", "algo.num_generations=4", "tier.eval_rows=8", "train.max_steps=3"]
ROWS = [{"prompt": f"p{at}", "chosen": "yes", "rejected": "no"} for at in range(4)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").write_text("raise RuntimeError('run before its turn')\n")
    (folder / "own_rewards.py").write_text(MODULE)
    (folder / "broken_rewards.py").write_text("import no_such_module\n")
    (folder / "a_script.py").write_text("import sys\nsys.exit(2)\n")
    return folder


@pytest.fixture(autouse=True)
def _found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(place))
    monkeypatch.syspath_prepend(str(place))


def composed(*words: str) -> CanaryConfig:
    register_schemas()
    return check(parse([*words, "hardware=cpu", "tier=smoke"]))[0]


def own(name: str) -> tuple[str, str]:
    return "algo.reward.kind=function", f"algo.reward.path=own_rewards:{name}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none", "score 1 of 4 is None; expected a number"),
        ("nan", "score 1 of 4 is nan; expected a finite number"),
        ("few", "returned 1 scores for 4 answers; expected one for each"),
        ("number", "returned a float; expected a list of 4 scores"),
        ("words", "score 1 of 4 is 'good'; expected a number"),
        ("asks", "asks for solution; expected some of prompts, completions, completion_ids, chosen, rejected"),
        ("breaks", "cannot score the first 4 rows of the data: KeyError: 'solution'; it is given prompts, completions"),
        ("leaves", "cannot score the first 4 rows of the data: SystemExit: no key; it is given prompts, completions"),
        ("by_position", "takes completions by position alone"),
        ("later", "is an async function; expected a plain function"),
        ("TEXT", "is of type str; expected a plain function"),
        ("absent", "own_rewards has no 'absent'; expected the name of a function in it"),
    ],
)
def test_a_function_that_is_no_reward_is_refused_in_one_line(name: str, said: str) -> None:
    with pytest.raises(SetupError, match=re.escape(said)) as refused:
        reward_sources.try_function(f"own_rewards:{name}", ROWS)
    assert "\n" not in str(refused.value)
    assert f"own_rewards:{name}" in str(refused.value)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("own_rewards.short", "is no import path; expected one, such as my_package.rewards:polite"),
        ("no_such_module:f", "there is no module 'no_such_module', neither in this folder nor installed"),
        ("my_package.none:f", "there is no module 'my_package.none'"),  # and its package is not run to find out
        ("math:fsum", "has no Python source"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_before_anything_is_loaded(path: str, said: str) -> None:
    config = composed("algo=grpo", "algo.reward.kind=function", f"algo.reward.path={path}")
    with pytest.raises(SetupError, match=re.escape(said)):
        preflight(config)


def test_a_module_of_the_working_folder_comes_before_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "polite_rewards.py").touch()
    (tmp_path / "polite_rewards.py").write_text(MODULE)
    reward_sources.try_function("polite_rewards:short", ROWS)
    assert reward_sources.source_file("polite_rewards:short") == tmp_path / "polite_rewards.py"
    (tmp_path / "pytest.py").write_text(MODULE)
    with pytest.raises(SetupError, match="is in use; expected another name"):
        reward_sources.try_function("pytest:short", ROWS)


def test_a_module_that_cannot_be_imported_says_why() -> None:
    preflight(composed("algo=grpo", "algo.reward.kind=function", "algo.reward.path=broken_rewards:f"))
    with pytest.raises(SetupError, match="broken_rewards cannot be imported: ModuleNotFoundError: No module named"):
        reward_sources.try_function("broken_rewards:f", ROWS)
    with pytest.raises(SetupError, match="a_script cannot be imported: SystemExit: 2"):
        reward_sources.try_function("a_script:f", ROWS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algo.reward.kind=function"], "algo.reward.path is not set; expected a function's import path"),
        (["algo.rewards=[{kind: length}]"], "algo.rewards[0].target is 0; expected at least 1 token"),
        (["algo.rewards=[{kind: length, target: 4}, {kind: lengths}]"], "algo.rewards[1].kind is 'lengths'"),
        (["algo.rewards=[{kind: length, target: 4, scale: 0}]"], "algo.rewards[0].scale is 0.0; expected more than 0"),
        (["algo.rewards=[{kind: length, weight: 4}]"], "weight"),
        (["algo.rewards=[length]"], "algo.rewards"),
    ],
)
def test_rewards_that_cannot_be_composed_are_refused(words: list[str], said: str) -> None:
    for algo in ("grpo", "ppo"):
        with pytest.raises(UsageError, match=re.escape(said)) as refused:
            composed(f"algo={algo}", *words)
        assert "\n" not in str(refused.value)


def answers(*texts: list[int]) -> Answers:
    ids = torch.tensor(texts)
    mask = torch.ones_like(ids).bool()
    return Answers(prompt_ids=ids, prompt_mask=mask, response_ids=ids, response_mask=mask, rows=ROWS[: len(texts)])


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(chr, ids))

    def __len__(self) -> int:
        return 0


def test_several_rewards_add_up_with_their_scales() -> None:
    one = '{kind: function, path: "own_rewards:short", scale: 8}'
    config = composed("algo=ppo", f"algo.rewards=[{one}, {{kind: length, target: 4}}, {{kind: length, target: 1}}]")
    config = read_back(to_plain(config))
    rewards = rewards_of(config.algo.scored_by(), Letters(), "cpu")
    drawn = answers([1, 2], [3, 4])
    assert {name: one(drawn).tolist()[0] for name, one in rewards.items()} == pytest.approx(
        {"short": 8 / 3, "length": -0.5, "length-2": -1.0}
    )
    assert sum_of([*rewards.values()])(drawn).tolist() == pytest.approx([8 / 3 - 1.5] * 2)


def test_the_source_of_a_function_and_each_weight_are_part_of_the_work(place: Path, tmp_path: Path) -> None:
    def work(*words: str) -> dict[str, str]:
        config = composed("algo=grpo", *words)
        return describe(config, prepare_inputs(config), Device(kind="cpu", precision="fp32"))

    own_words = [*own("short")]
    first, other = work(*own_words), work(*own("beside_chosen"))
    assert {key for key in first if first[key] != other[key]} == {"reward_path"}
    source = place / "own_rewards.py"
    try:
        source.write_text(MODULE + "\n# a change\n")
        assert {key for key, now in work(*own_words).items() if now != first[key]} == {"reward_revision"}
    finally:
        source.write_text(MODULE)
    assert work(*own_words) == first
    two = "algo.rewards=[{kind: length, target: 4}, {kind: length, target: 4, scale: %s}]"
    one, half = work(two % 1), work(two % 0.5)
    assert {key for key in one if one[key] != half[key]} == {"reward_2_scale"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> ForkedRuns:
    return ForkedRuns(tmp_path_factory.mktemp("own_reward"))


def test_a_group_trainer_is_paid_by_functions_that_read_the_data(runs: ForkedRuns) -> None:
    two = '{kind: function, path: "own_rewards:beside_chosen"}, {kind: function, path: "own_rewards:short", scale: 9}'
    run = runs.train("algo=grpo", *GROUPS, f"algo.rewards=[{two}]")
    assert run.completed, run.failure_reason
    assert {"trl/rewards/beside_chosen/mean", "trl/rewards/short/mean", "eval_reward"} <= set(run.series)
    total = [float(run.series[name].values[0]) for name in ("trl/rewards/beside_chosen/mean", "trl/rewards/short/mean")]
    assert float(run.series["reward_mean"].values[0]) == pytest.approx(sum(total), rel=1e-5)


def test_ppo_is_paid_by_a_function_that_reads_the_data(runs: ForkedRuns) -> None:
    run = runs.train("algo=ppo", *GROUPS[2:], *own("beside_chosen"))
    assert run.completed, run.failure_reason
    assert all(float(value) > 10 for value in run.series["score_mean"].values)


def test_a_function_that_fails_in_training_ends_the_run_in_one_line(runs: ForkedRuns) -> None:
    run = runs.train("algo=ppo", *GROUPS[2:], *own("none"))
    assert not run.completed
    assert "is None; expected a number" in run.failure_reason
