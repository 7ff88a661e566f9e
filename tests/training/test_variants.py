"""The facts tier: variants of a canary that a plain run does not cover, each seen where it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forked_runs import ForkedRuns

from canary_mlflow.errors import UsageError
from canary_mlflow.gates import CheckOutcome, Outcome, Run, Version, judge
from canary_mlflow.gates.model.verdict import ReasonCode, Verdict
from canary_mlflow.policies import load_policy
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.config import VariantConfig
from canary_mlflow.training.variants import changed, load, variants_of

UNSCALED = """
from transformers import Trainer
step = Trainer.training_step
def training_step(self, *given, **named):
    return step(self, *given, **named) * self.args.gradient_accumulation_steps
Trainer.training_step = training_step
"""  # transformers 4.48: the logged loss times the accumulation steps, which no plain run shows
FROZEN_BY_SAVING = """
from transformers import Trainer
save = Trainer._save_checkpoint
def saving(self, model, *given, **named):
    save(self, model, *given, **named)
    trained = [one for one in model.parameters() if one.requires_grad]
    [one.requires_grad_(False) for one in trained[2:]]
Trainer._save_checkpoint = saving
"""  # peft 0.18: a checkpoint freezes the adapter that goes on training
WITHOUT_OPTIMIZER = """
from transformers import Trainer
Trainer._load_optimizer_and_scheduler = lambda self, checkpoint: None
"""
BREAKS = """
from canary_mlflow.training import adapters
def broken(*given): raise RuntimeError("no such thing as LoRA")
adapters.ADAPTERS["lora"] = broken
"""
WARMER = """
from trl import DPOConfig, SFTConfig
for kind in (DPOConfig, SFTConfig):
    kind.__dataclass_fields__["learning_rate"].default = 1e-3
    kind.__init__.__defaults__
    init = kind.__init__
    def warm(self, *given, init=init, **named):
        named.setdefault("warmup_steps", 3)
        init(self, *given, **named)
    kind.__init__ = warm
"""  # a default that flips: a canary that pins it does not see that
FACTS = ("tier=facts", "hardware=cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> ForkedRuns:
    return ForkedRuns(tmp_path_factory.mktemp("variants"))


def train(runs: ForkedRuns, *words: str, patch: str = "") -> Run:
    run = runs.train(*FACTS, *words, patch=patch)
    assert run.completed, run.failure_reason
    return run


def verdict_on(before: Run, now: Run) -> Verdict:
    sides = (Version(model="m", version=str(at), runs=(run,)) for at, run in enumerate((before, now)))
    return judge(load_policy("facts"), *sides)


def test_variants_follow_from_the_algorithm_and_from_their_files() -> None:
    register_schemas()
    config = check(parse(["algo=dpo"]))[0]
    config = replace(config, tier=replace(config.tier, variants=["accumulation", "packing", "temperature"]))
    assert [one.variant.name for one in variants_of(config)] == ["accumulation"]
    assert variants_of(config)[0].train.gradient_accumulation_steps == 4
    with pytest.raises(UsageError, match="found 'nope'; expected some of accumulation, defaults"):
        load("nope")
    with pytest.raises(UsageError, match="found model; expected settings of train, algo, adapter"):
        changed(config, VariantConfig(name="own", settings={"model": {}}))
    with pytest.raises(UsageError, match="expected keys and values of train"):
        changed(config, VariantConfig(name="own", settings={"train": {"nope": 1}}))


def test_what_only_a_variant_shows_blocks(runs: ForkedRuns) -> None:
    words = ("algo=sft", "tier.variants=[accumulation,save]")
    first, again = train(runs, *words), train(runs, *words, patch="# the same again\n")
    assert first.facts["save/outcome.resumed_step"] == "the same next step"
    assert {first.facts[f"save/outcome.resumed_{what}"] for what in ("model", "optimizer", "scheduler", "random")} == {
        "as saved"
    }
    equal = verdict_on(first, again)
    assert (equal.outcome, equal.reason) == (
        Outcome.PASS, "Every exact fact is equal, or differs by rounding alone."
    )  # fmt: skip
    scaled = verdict_on(first, train(runs, *words, patch=UNSCALED))
    assert scaled.outcome is Outcome.BLOCK
    assert "accumulation: first loss" in scaled.reason
    assert "(4 times)" in scaled.reason
    lost = verdict_on(first, train(runs, *words, patch=FROZEN_BY_SAVING + WITHOUT_OPTIMIZER))
    assert lost.outcome is Outcome.BLOCK
    assert {one.key for one in lost.differences if one.decides} >= {
        "save/outcome.trainable",
        "save/outcome.resumed_optimizer",
        "save/outcome.resumed_step",
    }


@pytest.mark.full  # every day for two variants of SFT, above
@pytest.mark.parametrize("algo", ["sft", "dpo", "ppo", "grpo", "rloo", "kto", "reward"])
def test_every_variant_trains_and_repeats_bit_for_bit(runs: ForkedRuns, algo: str) -> None:
    first, again = train(runs, f"algo={algo}"), train(runs, f"algo={algo}", patch="# the same again\n")
    ends = {key: value for key, value in first.facts.items() if key.endswith("/outcome.ended")}
    assert set(ends.values()) == {"finished"}
    assert len(ends) == {"sft": 6, "dpo": 4, "ppo": 5}.get(algo, len(ends)) > 2
    assert {value for key, value in first.facts.items() if "/outcome.resumed_" in key} == {
        "as saved", "the same next step"
    }  # fmt: skip
    assert verdict_on(first, again).outcome is Outcome.PASS


@pytest.mark.full
@pytest.mark.parametrize("algo", ["sft", "dpo", "ppo"])
def test_a_variant_that_breaks_blocks_with_its_place(runs: ForkedRuns, algo: str) -> None:
    found = verdict_on(train(runs, f"algo={algo}"), train(runs, f"algo={algo}", patch=BREAKS))
    assert found.outcome is Outcome.BLOCK
    assert "lora: the short training finished → RuntimeError at training/" in found.reason


@pytest.mark.full
def test_a_default_that_flips_is_shown_and_no_pass(runs: ForkedRuns) -> None:
    words = ("algo=sft", "tier.variants=[defaults]")
    found = verdict_on(train(runs, *words), train(runs, *words, patch=WARMER))
    assert (found.outcome, found.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.FACTS_DIFFER)
    assert "defaults/arguments.warmup_steps" in {one.key for one in found.differences}
    assert [check.outcome for check in found.checks if check.metric == "facts"] == [CheckOutcome.INCONCLUSIVE]
