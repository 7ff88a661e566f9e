"""The command line: what composes, and what is refused in one line before anything heavy loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from canary_mlflow.errors import UsageError
from training.compose import check, expand, register_schemas, to_config, to_plain
from training.config import ALGORITHMS, CanaryConfig

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
STEPS = {
    ("smoke", "sft"): 100, ("smoke", "dpo"): 100, ("smoke", "ppo"): 50,
    ("perf", "sft"): 500, ("perf", "dpo"): 500, ("perf", "ppo"): 200,
    ("nightly", "sft"): 2000, ("nightly", "dpo"): 2000, ("nightly", "ppo"): 500,
}  # fmt: skip


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def compose(*words: str) -> CanaryConfig:
    register_schemas()
    return check(words)[0]


def refusal(*words: str) -> str:
    register_schemas()
    with pytest.raises(UsageError) as caught:
        check(words)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("tier", options("tier"))
@pytest.mark.parametrize("algo", options("algo"))
def test_every_algorithm_and_tier_composes(algo: str, tier: str) -> None:
    config = compose(f"algo={algo}", f"tier={tier}")
    assert config.train.max_steps == STEPS[tier, algo]
    assert config.gate["name"] == tier
    assert type(config.algo) is ALGORITHMS[algo]


@pytest.mark.parametrize(
    ("group", "option"),
    [
        (group, option)
        for group in ("model", "data", "adapter", "quantization", "fault", "hardware", "tracking", "gate")
        for option in options(group)
    ],
)
def test_every_option_composes(group: str, option: str) -> None:
    path = [f"{group}.path=somewhere"] if option in ("local", "jsonl") else []
    compose(f"{group}={option}", *path)


def test_command_line_beats_every_file() -> None:
    config = compose("train.learning_rate=1e-3", "train.max_steps=7", "gate.bootstrap=manual", "algo.beta=0.5")
    assert (config.train.learning_rate, config.train.max_steps) == (1e-3, 7)
    assert (config.gate["bootstrap"], config.algo.beta) == ("manual", 0.5)


def test_a_configuration_survives_the_way_to_a_run() -> None:
    config = compose("algo=ppo", "seed=3")
    assert to_config(to_plain(config)) == config


def test_overrides_are_split_as_a_shell_would() -> None:
    assert expand(["algo=sft", "--overrides=a.b=1 'c=x y'", "--overrides=", ""]) == ["algo=sft", "a.b=1", "c=x y"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tier=nope"], ["tier", "nope", "nightly", "perf", "smoke"]),
        (["algo=pppo"], ["algo", "pppo", "dpo", "ppo", "sft", "did you mean"]),
        (["model=gpt5"], ["model", "gpt5", "tiny-neox", "local"]),
        (["model=./folder"], ["model=local model.path="]),
        (["gate=lax"], ["gate", "lax", "smoke"]),
        (["train.lr=1"], ["train.lr", "learning_rate"]),
        (["+train.lr=1"], ["lr"]),
        (["+zzz=1"], ["zzz"]),
        (["algo=sft", "algo.beta=1"], ["algo.beta"]),
        (["algo=dpo", "+algo.cliprange=1"], ["cliprange"]),
        (["seed=abc"], ["seed", "abc"]),
        (["train.max_steps=-1"], ["train.max_steps is -1", "at least 1"]),
        (["train.learning_rate=-1"], ["train.learning_rate"]),
        (["train.learning_rate=nan"], ["train.learning_rate"]),
        (["repeats=0"], ["repeats is 0"]),
        (["hardware.device=tpu"], ["tpu", "cpu", "cuda"]),
        (["algo=ppo", "algo.num_minibatches=3"], ["num_minibatches", "divisor"]),
        (["gate.alpha_block=2"], ["alpha_block"]),
        (["+gate.rules.speed.role=gate"], ["speed"]),
        (["--overrride=x"], ["--overrride"]),
        (["algo=dpo,sft"], ["algo"]),
        (["=1"], ["key=value"]),
        (["foo"], ["foo", "key=value"]),
        (["tier.repeats=0"], ["tier.repeats is 0"]),
        (["model_name=a/b"], ["model_name", "a/b"]),
        (["train.optimizer=foo"], ["foo", "adamw_torch"]),
        (["train.learning_rate=inf"], ["train.learning_rate"]),
        (["algo.beta=nan"], ["algo.beta"]),
        (["fault=nan_batch", "fault.step=100"], ["fault.step is 100", "0 to 99"]),
        (["fault=lr_high", "fault.factor=nan"], ["fault.factor"]),
        (["--config-dir", "/nowhere"], ["/nowhere"]),
        (["--config-name", "foo"], ["--config-name"]),
    ],
)
def test_wrong_words_are_refused_with_the_right_ones(words: list[str], expected: list[str]) -> None:
    message = refusal(*words)
    for part in expected:
        assert part in message


def test_a_multirun_checks_every_job() -> None:
    register_schemas()
    configs = check(["--multirun", "algo=sft,dpo,ppo", "seed=1,2"])
    assert [(item.algo.name, item.seed) for item in configs] == [
        (algo, seed) for algo in ("sft", "dpo", "ppo") for seed in (1, 2)
    ]
    assert "algo.beta" in refusal("--multirun", "algo=sft,dpo", "algo.beta=.2")


@pytest.mark.parametrize("words", [["tier=nope"], ["+zzz=1"], ["train.max_steps=-1"]])
def test_a_refusal_leaves_nothing_behind(words: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "training", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
