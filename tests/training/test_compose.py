"""The command line: what composes, and what is refused in one line before anything heavy loads."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import forking
import pytest
import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from canary_mlflow.errors import UsageError
from canary_mlflow.policies import load_watch
from canary_mlflow.training.algorithms import NAMES, schemas
from canary_mlflow.training.command_line import expand, parse
from canary_mlflow.training.compose import check, register_schemas, to_config
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.naming import run_name, run_params, session_name
from canary_mlflow.training.plain import read_back, to_plain
from canary_mlflow.training.preflight import check_values

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
STEPS = {
    ("facts", "sft"): 5, ("facts", "dpo"): 5, ("facts", "ppo"): 3,
    ("smoke", "sft"): 100, ("smoke", "dpo"): 100, ("smoke", "ppo"): 50,
    ("perf", "sft"): 500, ("perf", "dpo"): 500, ("perf", "ppo"): 200,
    ("nightly", "sft"): 2000, ("nightly", "dpo"): 2000, ("nightly", "ppo"): 500,
}  # fmt: skip
LIKE = {"grpo": "ppo", "rloo": "ppo", "kto": "dpo", "reward": "dpo"}  # whose steps they take


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.fixture(autouse=True, scope="module")
def hydra_has_the_types() -> None:
    register_schemas()


def compose(*words: str) -> CanaryConfig:
    return composed(*words)[0]


@functools.cache
def canary(algo: str, tier: str) -> CanaryConfig:
    return compose(f"algo={algo}", f"tier={tier}")


def composed(*words: str) -> list[CanaryConfig]:
    return check(parse(expand(words)))


def refusal(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        composed(*words)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("tier", options("tier"))
@pytest.mark.parametrize("algo", options("algo"))
def test_every_algorithm_and_tier_composes(algo: str, tier: str) -> None:
    config = canary(algo, tier)
    assert config.train.max_steps == STEPS[tier, LIKE.get(algo, algo)]
    assert config.gate["name"] == tier
    assert type(config.algo) is schemas()[algo]


@pytest.mark.parametrize(
    ("group", "option"),
    [
        (group, option)
        for group in ("model", "data", "adapter", "quantization", "hardware", "tracking", "gate")
        for option in options(group)
    ],
)
def test_every_option_composes(group: str, option: str) -> None:
    path = [f"{group}.path=somewhere"] if option in ("local", "jsonl") else []
    compose(f"{group}={option}", *path)


@pytest.mark.parametrize("fault", options("fault"))
def test_every_fault_composes_and_may_strike_each_of_its_algorithms(fault: str) -> None:
    first, *others = _algorithms_of(fault)
    assert "${" not in (CONF / "fault" / f"{fault}.yaml").read_text()  # so Hydra makes the same of it with the others
    struck = compose(f"fault={fault}", f"algo={first}").fault
    for algo in others:
        check_values(replace(canary(algo, "smoke"), fault=struck))


def test_the_stored_configuration_is_what_really_trains() -> None:
    """A fault of settings changes others than its own: by the params a report says what changed."""
    healthy, struck = (run_params(compose("algo=ppo", f"fault={fault}")) for fault in ("none", "kl_zero"))
    changed = {key for key in healthy if healthy[key] != struck[key]} - {"cfg/fault.description"}
    assert changed == {"cfg/algo.init_kl_coef", "cfg/algo.ppo_epochs", "cfg/fault.name", "cfg/fault.kind"}
    assert float(struck["cfg/algo.init_kl_coef"]) == 0.0


def test_names_in_mlflow_are_short() -> None:
    config = compose("algo=ppo", "fault=kl_zero", "seed=7")
    assert (session_name(config), run_name(config)) == ("ppo tiny-neox smoke fault=kl_zero", "seed 7")
    assert session_name(compose("model_name=mine")) == "mine"


def test_a_canary_ends_where_it_is_lost_unless_its_watch_says_otherwise(tmp_path: Path) -> None:
    """An own script that names the same policy goes on."""
    assert load_watch().on_critical == "auto"
    assert compose().watch["on_critical"] == "stop"
    assert compose("watch.on_critical=warn").watch["on_critical"] == "warn"
    for own, expected in (("", "stop"), ("on_critical: warn\n", "warn")):
        (tmp_path / "mine.yaml").write_text(f"base: default\n{own}rows: {{hold: 20}}\n")
        assert compose(f"watch={tmp_path}/mine.yaml").watch["on_critical"] == expected


def _algorithms_of(fault: str) -> list[str]:
    signals = yaml.safe_load((CONF / "fault" / f"{fault}.yaml").read_text()).get("signals")
    return list(signals or ["dpo"])


def test_command_line_beats_every_file() -> None:
    config = compose("train.learning_rate=1e-3", "train.max_steps=7", "gate.bootstrap=manual", "algo.beta=0.5")
    assert (config.train.learning_rate, config.train.max_steps) == (1e-3, 7)
    assert (config.gate["bootstrap"], config.algo.beta) == ("manual", 0.5)


@pytest.mark.parametrize("algo", NAMES)
def test_a_configuration_survives_the_way_to_a_run(algo: str) -> None:
    config = compose(f"algo={algo}", "seed=3", "adapter=lora", "train.learning_rate=1", "model_name=m")
    written = json.loads(json.dumps(to_plain(config)))
    assert read_back(written) == config
    assert to_plain(read_back(written)) == to_plain(config) == OmegaConf.to_container(OmegaConf.structured(config))
    assert to_config(written) == config


def test_overrides_are_split_as_a_shell_would() -> None:
    assert expand(["algo=sft", "--overrides=a.b=1 'c=x y'", "--overrides=", ""]) == ["algo=sft", "a.b=1", "c=x y"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tier=nope"], ["tier", "nope", "nightly", "perf", "smoke"]),
        (["algo=pppo"], ["algo", "pppo", "dpo", "grpo", "kto", "ppo", "reward", "rloo", "sft", "did you mean"]),
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
        (["register=false", "gate.top_up=true"], ["register is false", "gate.top_up is true"]),
        (["hardware.device=tpu"], ["tpu", "cpu", "cuda"]),
        (["algo=ppo", "algo.num_minibatches=3"], ["num_minibatches", "divisor"]),
        (["algo=grpo", "algo.num_generations=5"], ["algo.num_generations is 5", "divisor", "32"]),
        (["algo=grpo", "algo.num_generations=1"], ["algo.num_generations is 1", "at least 2"]),
        (["algo=grpo", "algo.beta=-1"], ["algo.beta is -1"]),
        (["algo=rloo", "algo.generation=sglang"], ["algo.generation is 'sglang'", "hf, vllm"]),
        (["algo=grpo", "algo.loss_type=foo"], ["foo", "dapo"]),
        (["algo=grpo", "fault=temperature_ignored", "algo.temperature=1"], ["nothing to leave out"]),
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
        (["fault=lr_high", "fault.strength=nan"], ["fault.strength"]),
        (["fault=flipped_labels", "fault.strength=1.5"], ["fault.strength is 1.5", "at most 1", "share of the pairs"]),
        (["fault=nan_batch", "fault.strength=2"], ["fault.strength is 2", "no degrees"]),
        (["fault=kl_zero"], ["fault=kl_zero does not apply to algo=dpo", "ppo"]),
        (["fault=dpo_unstable_lr", "algo=sft"], ["does not apply to algo=sft", "dpo"]),
        (["fault=nan_batch", "fault.name=nan_bach"], ["fault.name is 'nan_bach'", "nan_batch"]),
        (["fault=wrong_reference", "adapter=lora"], ["adapter=full"]),
        (["fault=no_learning", "fault.settings={seed: 1}"], ["fault.settings.seed"]),
        (["fault=no_learning", "+fault.settings.seed=1"], ["fault.settings: seed", "train or algo"]),
        (["fault=no_learning", "fault.settings.train.learning_rate=-1"], ["train.learning_rate is -1"]),
        (["fault=no_learning", "fault.settings.train={lerning_rate: 0}"], ["fault.settings.train", "lerning_rate"]),
        (["--config-dir", "/nowhere"], ["/nowhere"]),
        (["--config-name", "foo"], ["--config-name"]),
        (["~algo"], ["~algo", "algo=NAME", "dpo, grpo, kto, ppo, reward, rloo, sft"]),
        (["~fault"], ["fault=NAME", "none"]),
        (["~train.learning_rate"], ["train.learning_rate=VALUE"]),
        (["algo=[dpo]"], ["algo=[dpo]", "algo=NAME"]),
        (["tier=null"], ["tier=NAME"]),
        (["+algo=ppo"], ["algo=NAME"]),
        (["algo.name=sft"], ["algo=sft"]),
        (["hydra.nope=1"], ["hydra.nope", "launcher", "sweeper"]),
        (["gate.rules.foo.margin=1"], ["rules.foo", "metric missing"]),
        (["gate.rules.step_time.margn=1"], ["rules.step_time: unknown key 'margn'", "margin, "]),
        (["train=5"], ["train.KEY=VALUE"]),
        (["train.max_steps=1.5"], ["train.max_steps is 1.5", "whole number"]),
        (["train.max_steps=null"], ["train.max_steps is null"]),
        (["algo=ppo", "algo.whiten_rewards=maybe"], ["maybe", "true or false"]),
        (["a=b=c"], ["a=b=c", "key=value"]),
        (["tracking.experiment="], ["tracking.experiment is ''"]),
        (["tier.timeout_minutes=0"], ["tier.timeout_minutes", "more than 0"]),
        (["algo=ppo", "algo.reward.tokens=[]"], ["algo.reward.tokens"]),
        (["algo=ppo", "algo.reward.min_tokens=0"], ["algo.reward.min_tokens is 0"]),
        (["algo=ppo", "algo.reward.kind=length", "algo.reward.target=0"], ["algo.reward.target is 0"]),
        (["--cfg", "nope"], ["--cfg", "nope", "job"]),
        (["--cfg", "job", "--info", "all"], ["--cfg", "--info", "one of them"]),
        (["hydra/launcher=nope"], ["hydra/launcher", "nope", "basic", "pip install hydra-nope-launcher"]),
        (["-m", "tracking.experiment=a,b"], ["2 stores or experiments"]),
        (["gate=/nowhere/policy.yaml"], ["/nowhere/policy.yaml", "not found"]),
    ],
)
def test_wrong_words_are_refused_with_the_right_ones(words: list[str], expected: list[str]) -> None:
    message = refusal(*words)
    for part in expected:
        assert part in message


def test_a_launcher_that_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(composed("-m", "seed=1,2", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=a")) == 2
    monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["launcher"], "submitit_slurm.yaml")
    assert 'pip install "canary-mlflow[slurm]"' in refusal("-m", "hydra/launcher=submitit_slurm")


def test_a_policy_of_ones_own_is_named_by_its_path(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: smoke\nname: mine\nrules: {step_cost: {margin: 2.0}}\n")
    gate = compose(f"gate={mine}", "gate.rules.step_time.margin=0.5").gate
    assert (gate["name"], gate["rules"]["step_cost"]["margin"], gate["rules"]["step_time"]["margin"]) == (
        "mine",
        2.0,
        0.5,
    )
    assert [config.gate["name"] for config in composed("-m", f"gate=smoke,{mine}")] == ["smoke", "mine"]
    mine.write_text("base: smoke\nrules: {step_tim: {margin: 2.0}}\n")
    assert "step_tim" in refusal(f"gate={mine}")


def test_the_mode_of_a_sweep_may_be_an_override() -> None:
    assert len(composed("hydra.mode=MULTIRUN", "seed=1,2")) == 2


def test_an_option_may_stand_between_overrides() -> None:
    configs = composed("algo=sft,dpo", "--multirun", "seed=1,2")
    assert [(config.algo.name, config.seed) for config in configs] == [("sft", 1), ("sft", 2), ("dpo", 1), ("dpo", 2)]
    words = ["algo=sft", "--config-dir", "mine", "seed=1"]
    assert expand(words) == ["--config-dir", "mine", "algo=sft", "seed=1"]  # as Hydra's own parser takes them


def test_a_multirun_checks_every_job() -> None:
    configs = composed("--multirun", "algo=sft,dpo,ppo", "seed=1,2")
    assert [(item.algo.name, item.seed) for item in configs] == [
        (algo, seed) for algo in ("sft", "dpo", "ppo") for seed in (1, 2)
    ]
    assert "algo.beta" in refusal("--multirun", "algo=sft,dpo", "algo.beta=.2")


@pytest.mark.parametrize("words", [["tier=nope"], ["+zzz=1"], ["train.max_steps=-1"], ["data.path=a.jsonl"]])
def test_a_refusal_leaves_nothing_behind(words: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [forking.python(), "-m", "training", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_refusal_waits_for_neither_torch_nor_mlflow(tmp_path: Path) -> None:
    script = (
        "import sys; from canary_mlflow.training.__main__ import main; assert main(['hardware.threads=100000']) == 2; "
        "sys.exit(' '.join({'torch', 'mlflow', 'transformers'} & set(sys.modules)) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("canary: hardware.threads is 100000; expected at most")
