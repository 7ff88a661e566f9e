"""Which settings that somebody changed may explain a fact that differs, by what a setting acts through."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gates.model.records import Run
from gates.model.sides import ABSENT
from gates.model.verdict import Difference

RECORDS, LOADING, SCHEDULE, UPDATES = "records", "loading", "schedule", "updates"
NUMBERS, WEIGHTS, ANYTHING = "numbers", "weights", "anything"

CANARY = "tier.name"  # a key that only a canary's configuration has
_KINDS = {
    RECORDS: ("best_model", "disable_tqdm", "eval_accum", "eval_batch", "eval_delay", "eval_st", "fault_", "hub_",
              "log_level", "logging_", "peft_version", "push_to", "report_to", "save_on", "save_safe", "save_st",
              "save_total", "tracking_", "transformers_version"),
    LOADING: ("dataloader_num", "dataloader_pers", "dataloader_pin", "dataloader_pref"),
    SCHEDULE: ("learning_rate", "lr_", "optim", "schedul", "warmup"),
    UPDATES: ("adam", "grad_norm", "weight_decay"),
    NUMBERS: ("beta_", "bf16", "dropout", "fp16", "gradient_check", "label_smooth", "neftune", "tf32"),
    WEIGHTS: ("adapter", "bits", "freez", "frozen", "head", "layer", "load_in_", "lora", "model", "module",
              "peft", "quant", "r_", "rank_", "trainable", "unfr"),
}  # fmt: skip
"""Kinds of settings by what their key, or a later part of it, begins with; the first kind counts. RECORDS: what is
looked at and kept on the way, and what libraries say of themselves; also a fault, which stands for an accident.
LOADING: how prepared rows reach a step; several processes deal a stream's rows out otherwise. SCHEDULE: the learning
rate's. UPDATES: the optimizer's other ones; both act through an update alone. NUMBERS: how a step computes its loss.
WEIGHTS: which there are and which of them train. The rest may do ANYTHING, also what a script calls by names of its
own."""

_EXPLAINED_BY = (
    (("parameters.trainable", "outcome.trainable"), {WEIGHTS}),
    (("evaluated.weights",), {NUMBERS, WEIGHTS, ANYTHING}),
    (("data.", "evaluated."), {WEIGHTS, ANYTHING}),
    (("first.tokens", "first.labels", "labels."), {LOADING, WEIGHTS, ANYTHING}),
    (("first.loss.1", "first.reward_mean.1", "first.score_mean.1"), {LOADING, NUMBERS, WEIGHTS, ANYTHING}),
    (("course.",), {SCHEDULE, ANYTHING}),
    (("batches.",), {ANYTHING}),
    (("training.optimizer_state", "training.scheduler_state"), {SCHEDULE, UPDATES}),
    (("",), {LOADING, SCHEDULE, UPDATES, NUMBERS, WEIGHTS, ANYTHING}),
)
"""Beginnings of facts → the kinds of settings that may explain them; the first line counts. What trains follows from
nothing but what somebody says about it. Tokens and the first loss come before any update."""


def may_explain(setting: str, fact: str) -> bool:
    """Whether a change of the setting (`train.learning_rate`, or an argument in a script of one's own) may be why the
    fact (without its variant: `first.loss.1`) differs."""
    words = re.split(r"[._/-]", setting)
    parts = [f"{'_'.join(words[at:])}_" for at in range(len(words))]
    kind = next((kind for kind, heads in _KINDS.items() if any(part.startswith(heads) for part in parts)), ANYTHING)
    return kind in next(kinds for heads, kinds in _EXPLAINED_BY if fact.startswith(heads))


def of_one_version(setting: Difference, *sides: Iterable[Run]) -> bool:
    """Whether only one version of the canaries has it, which know all settings of theirs: nobody chose it."""
    canaries = all(CANARY in run.configuration for side in sides for run in side)
    return canaries and ABSENT in (setting.baseline, setting.candidate)
