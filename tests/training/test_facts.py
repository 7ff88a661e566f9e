"""Exact facts of real canaries: unchanged code never blocks, on equal and on fresh seeds; changed code is named.

Runs of a few steps in forked processes. A change is a patch that no configuration shows, like a library's.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from forked_runs import ForkedRuns

from canary_mlflow.gates import CheckOutcome, Run, Version, judge
from canary_mlflow.gates.facts.exact import FACTS
from canary_mlflow.gates.model.verdict import Check, Verdict
from canary_mlflow.policies import load_policy

SHORT = ("train.max_steps=4", "tier.train_rows=48", "tier.eval_rows=8")
CANARIES = {
    "sft": ("algo=sft",),
    "sft-lora": ("algo=sft", "adapter=lora"),
    "sft-accumulation": ("algo=sft", "train.gradient_accumulation_steps=4"),
    "dpo": ("algo=dpo",),
    "dpo-lora": ("algo=dpo", "adapter=lora"),
    "ppo": ("algo=ppo",),
}
AGAIN = "# the same again\n"
OTHER_TOKEN = """
from tokenizers.processors import TemplateProcessing
from canary_mlflow.training import loading
load = loading.load_tokenizer
def with_another(folder):
    found = load(folder)
    special = [(found.eos_token, found.eos_token_id)]
    found.backend_tokenizer.post_processor = TemplateProcessing(single=f"{found.eos_token} $A", special_tokens=special)
    return found
loading.load_tokenizer = with_another
"""
UNSCALED = """
from transformers import Trainer
step = Trainer.training_step
def training_step(self, *given, **named):
    return step(self, *given, **named) * self.args.gradient_accumulation_steps
Trainer.training_step = training_step
"""  # transformers 4.48: the logged loss times the accumulation steps, the gradient as before
MODEL = """
from canary_mlflow.training import loading
load = loading.load_model
def changed(*given, **named):
    model = load(*given, **named)
    {change}
    return model
loading.load_model = changed
"""
FROZEN = MODEL.format(change="[one.requires_grad_(False) for one in list(model.parameters())[:4]]")
DROPOUT = MODEL.format(change="[setattr(one, 'p', 0.3) for one in model.modules() if type(one).__name__ == 'Dropout']")
OTHER_ROW = """
from canary_mlflow.training import datasets
as_completions = datasets.as_completions
def changed(rows):
    def one(row, number):
        return {**row, "completion": row["completion"][::-1]} if number == 0 else row
    return as_completions(rows).map(one, with_indices=True)
datasets.as_completions = changed
"""
CHANGES = [
    ("sft", OTHER_TOKEN, {"data.tokens.input_ids", "first.tokens", "first.loss.1", "tokenizer.digest"}),
    ("dpo", OTHER_TOKEN, {"data.tokens.prompt_ids", "first.tokens", "tokenizer.digest"}),
    ("ppo", OTHER_TOKEN, {"first.tokens", "tokenizer.digest"}),
    ("sft-accumulation", UNSCALED, {"first.loss.1"}),
    ("sft", FROZEN, {"parameters.trainable", "parameters.names"}),
    ("dpo", FROZEN, {"parameters.trainable", "parameters.names"}),
    ("sft", OTHER_ROW, {"data.tokens.input_ids"}),
    ("sft", DROPOUT, {"first.loss.1", "model.dropout"}),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> ForkedRuns:
    return ForkedRuns(tmp_path_factory.mktemp("facts"))


def train(runs: ForkedRuns, canary: str, seed: int = 0, patch: str = "") -> Run:
    run = runs.train(*CANARIES[canary], *SHORT, f"seed={seed}", patch=patch)
    assert run.completed, run.failure_reason
    return replace(run, learned=None)  # four steps teach PPO nothing, and what learned nothing is no baseline


def verdict_on(before: list[Run], now: list[Run]) -> Verdict:
    sides = (Version(model="m", version=str(at), runs=tuple(side)) for at, side in enumerate((before, now)))
    return judge(load_policy("smoke"), *sides)


def fact_check(verdict: Verdict) -> Check:
    return next(one for one in verdict.checks if one.metric == FACTS)


@pytest.mark.full  # every day on scripts of one's own: tests/canary_mlflow/test_facts.py
@pytest.mark.parametrize("canary", CANARIES)
def test_unchanged_code_never_blocks(runs: ForkedRuns, canary: str) -> None:
    first, again = [[train(runs, canary, seed, patch) for seed in (0, 1)] for patch in ("", AGAIN)]
    for before, now in (first, again), (first[:1], again[1:]), (first[:1], again):
        found = verdict_on(before, now)
        assert fact_check(found).outcome is CheckOutcome.PASS, fact_check(found).reason
        assert not [one for one in found.differences if one.group == FACTS]


@pytest.mark.full
@pytest.mark.parametrize(("canary", "patch", "keys"), CHANGES)
def test_changed_code_is_named(runs: ForkedRuns, canary: str, patch: str, keys: set[str]) -> None:
    found = verdict_on([train(runs, canary)], [train(runs, canary, patch=patch)])
    assert keys <= {one.key for one in found.differences if one.group == FACTS}
    assert fact_check(found).outcome is CheckOutcome.BLOCK, fact_check(found)


@pytest.mark.full
def test_what_follows_from_no_seed_is_seen_on_fresh_seeds(runs: ForkedRuns) -> None:
    for patch in (OTHER_TOKEN, FROZEN, OTHER_ROW):
        found = verdict_on([train(runs, "sft")], [train(runs, "sft", 1, patch)])
        assert fact_check(found).outcome is CheckOutcome.BLOCK, patch
