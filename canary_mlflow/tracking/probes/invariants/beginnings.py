"""How a fresh run begins: the policy is its reference, a new adapter adds nothing, fresh answers have a ratio of 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.probes.invariants import Invariant, drops_out, is_coarse

OUTPUTS = ("lora_B", "lora_embedding_B")


class FreshAdapter(Invariant):
    """A new adapter's second factor is 0 in every layer (Hu et al. 2021, section 4.1), so the product is 0 too.

    Checks the weights: exact, without a forward pass. Does not apply if the adapter starts otherwise on purpose
    (`init_lora_weights` other than the default or gaussian), nor, unless `fresh` says so, if all factors are set:
    such an adapter comes from an earlier training.
    """

    name = "fresh adapter"

    def start(self, setting: Setting) -> None:
        if setting.resumed or setting.fresh is False:
            return
        policy = getattr(setting.model, "policy", setting.model)
        factors = dict(second_factors(policy))
        if not factors or not starts_at_zero(policy):
            return
        touched = [name for name, weight in factors.items() if bool(weight.detach().any())]
        if len(touched) == len(factors) and not setting.fresh:
            return
        self.hold(
            not touched,
            f"{len(touched)} of {len(factors)} new LoRA adapters change the output, the first at "
            f"{touched[0] if touched else ''}; a new adapter must change nothing",
        )


def second_factors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, weight) of the factor that starts at 0 in every trainable adapter."""
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.numel() and any(part in OUTPUTS for part in name.split(".")):
            yield name, weight


def starts_at_zero(model: Any) -> bool:
    """Whether every adapter's configuration asks for initial weights that change no output."""
    configs = getattr(model, "peft_config", {})
    starts = [getattr(config, "init_lora_weights", None) for config in configs.values()]
    return bool(starts) and all(start is True or start == "gaussian" for start in starts)


LN2 = math.log(2)
# DPO's losses whose value at a margin of 0 follows from beta alone. Label smoothing does not change it: both of its
# terms are ln 2. Other losses depend on the data (sft), on running means (bco_pair) or on further settings.
DPO_LOSS: dict[str, Callable[[float], float]] = {
    "sigmoid": lambda beta: LN2,
    "sigmoid_norm": lambda beta: LN2,
    "robust": lambda beta: LN2,
    "aot": lambda beta: LN2,
    "aot_unpaired": lambda beta: LN2,
    "hinge": lambda beta: 1.0,
    "ipo": lambda beta: 1 / (4 * beta**2),
    "apo_zero": lambda beta: 1.0,
    "apo_down": lambda beta: 1.0,
}
NATS = 1e-3  # per answer; float32 gives 1e-6 per token
COARSE_SHARE = 0.02  # of an answer's log-probability, if passes are rounded


class ReferenceStart(Invariant):
    """The first optimizer step's row: DPO's and KTO's `loss` and `implied_kl`, the `kl` of PPO, GRPO and RLOO.

    All its micro-batches are computed before any weight changes. Applies if the policy is its reference: as `fresh`
    says, else if adapters are new and switched off for the reference, or if the reference model has the policy's
    weights. Does not apply with dropout, nor after a resume.
    """

    name = "reference start"

    def __init__(self) -> None:
        super().__init__()
        self._applies = False
        self._coarse = False
        self._algo = ""
        self._beta = 0.0
        self._loss: float | None = None

    def start(self, setting: Setting) -> None:
        arguments = setting.arguments
        self._algo, self._coarse = setting.algo, is_coarse(setting)
        self._beta = float(arguments.get("beta") or 0.0)
        if self._algo not in ("dpo", "kto", "grpo", "rloo", "ppo") or setting.resumed or drops_out(setting.model):
            return
        if self._coarse and arguments.get("precompute_ref_log_probs"):
            return  # computed in other batches, and rounded
        self._applies = is_reference(setting)
        self._loss = LOSS[self._algo](arguments) if self._algo in LOSS else None

    def over(self) -> bool:
        return not self._applies

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        if not self._applies or step < 1:
            return
        # A KTO batch may lack good or bad answers, and then has no implied KL.
        names = {"dpo": ("implied_kl",), "kto": ("implied_kl", "kl")}.get(self._algo, ("kl",))
        kl = next((row[name] for name in names if name in row), None)
        if kl is None and self._algo == "ppo":
            return  # reported with the last step of the first iteration, measured before its first update
        self._applies = False  # checked only once
        if kl is None or not math.isfinite(kl) or (step > 1 and self._algo != "ppo"):
            return
        allowed = self._allowed(row)
        self.hold(
            abs(kl) <= allowed,
            f"KL from the reference is {kl:.4g} nats before the first update; policy and reference are the same model, "
            "so it must be 0",
        )
        self._check_loss(row, allowed)

    def _check_loss(self, row: Mapping[str, float], allowed: float) -> None:
        loss = row.get("loss", math.nan)
        if self._loss is None or not math.isfinite(loss) or "trl/aux_loss" in row:
            return
        # No loss in the table changes faster than beta x the margin's 2 answers, or, for ipo, 1 / beta per nat.
        off = 1e-4 * max(1.0, self._loss) + allowed * max(2 * self._beta, 1 / self._beta if self._coarse else 0.0)
        self.hold(
            abs(loss - self._loss) <= off,
            f"{self._algo.upper()}'s loss before the first update is {loss:.6g}; with policy and reference the same it "
            f"must be {self._loss:.6g}",
        )

    def _allowed(self, row: Mapping[str, float]) -> float:
        if not self._coarse:
            return NATS * max(1.0, row.get("response_length", 1.0) / 100)
        length = max(abs(row.get("chosen_logp", 0.0)), abs(row.get("rejected_logp", 0.0)))
        length = length or row.get("response_length", 10.0)  # some nats a token
        return 0.05 + COARSE_SHARE * length


def expected_loss(arguments: Mapping[str, Any]) -> float | None:
    """DPO's loss at a margin of 0; None if the settings do not determine it."""
    types = arguments.get("loss_type") or []
    types = [types] if isinstance(types, str) else list(types)
    weights = arguments.get("loss_weights") or [1.0] * len(types)
    beta = arguments.get("beta")
    known = all(kind in DPO_LOSS for kind in types) and len(weights) == len(types) > 0
    usual = not arguments.get("use_weighting") and arguments.get("f_divergence_type", "reverse_kl") == "reverse_kl"
    if not known or not usual or not isinstance(beta, (int, float)) or beta <= 0:
        return None
    return float(sum(weight * DPO_LOSS[kind](beta) for kind, weight in zip(types, weights, strict=True)))


def expected_kto_loss(arguments: Mapping[str, Any]) -> float | None:
    """KTO's loss if every answer has a log ratio of 0: 1 - sigmoid(0); None if answers have different weights."""
    weights = arguments.get("desirable_weight"), arguments.get("undesirable_weight")
    return 0.5 if weights == (1.0, 1.0) and arguments.get("loss_type") in ("kto", "apo_zero_unpaired") else None


LOSS: Mapping[str, Callable[[Mapping[str, Any]], float | None]] = {"dpo": expected_loss, "kto": expected_kto_loss}


def is_reference(setting: Setting) -> bool:
    """Whether the policy starts as its reference, as far as can be known without a forward pass."""
    if setting.fresh is not None:
        return setting.fresh
    if setting.trainer is None:
        return False
    policy = getattr(setting.model, "policy", setting.model)
    reference = getattr(setting.trainer, "ref_model", None) or getattr(setting.trainer, "reference", None)
    if reference is not None:
        return same_weights(policy, reference)
    factors = dict(second_factors(policy))
    return bool(factors) and not any(bool(weight.detach().any()) for weight in factors.values())


def same_weights(one: Any, other: Any) -> bool:
    """Whether two models have bitwise equal parameters with equal names, unsharded and on the same device."""
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    prefixed = {name.removeprefix("module."): weight for name, weight in theirs.items()}
    if mine.keys() != prefixed.keys():
        return False
    return all(
        weight.device == prefixed[name].device
        and weight.dtype == prefixed[name].dtype
        and weight.shape == prefixed[name].shape
        and weight.numel() > 0  # DeepSpeed's parameters are empty until they are needed
        and not hasattr(weight, "to_local")
        and torch.equal(weight, prefixed[name])
        for name, weight in mine.items()
    )


FIRST_KL = "first_kl_max_abs"  # max |new - old log-probability| of an iteration's first update
# Measured on a CPU: 0 with one thread, 1e-6 with several; 0.07 with rollouts one step old, 0.2 with dropout.
RATIO_EXACT, RATIO_COARSE = 1e-3, 0.1


class FirstEpoch(Invariant):
    """The largest |log ratio| of an iteration's first update, over all tokens; the mean ratio and the approximate KL
    follow from it. Checked in every iteration, if the trainer gives it: TRL's PPOTrainer averages over all its epochs.

    Does not apply to 8-bit weights: their outliers are chosen over the whole batch, so an answer's log-probability
    depends on its neighbours.
    """

    name = "first epoch"

    def __init__(self) -> None:
        super().__init__()
        self._tolerance = RATIO_EXACT
        self._applies = False

    def start(self, setting: Setting) -> None:
        policy = getattr(setting.model, "policy", setting.model)
        eight_bit = any(getattr(part, "is_loaded_in_8bit", False) for part in policy.modules())
        self._applies = setting.algo == "ppo" and not eight_bit and not drops_out(setting.model)
        self._tolerance = RATIO_COARSE if is_coarse(setting) else RATIO_EXACT

    def over(self) -> bool:
        return not self._applies

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        if not self._applies or FIRST_KL not in row or row[FIRST_KL] != row[FIRST_KL]:  # NaN is for another check
            return
        self.hold(
            row[FIRST_KL] <= self._tolerance,
            f"PPO's first update at step {step} has a log ratio of {row[FIRST_KL]:.3g}; it must be 0 before any weight "
            "has moved: rollout and update disagree about the policy",
        )


CLIPPED = "clip_fraction"


class FreshAnswers(Invariant):
    """The clip fraction of each optimizer step that is the first on its answers must be 0. Does not apply if passes are
    rounded: RLOO's ratio is that of a whole answer, and the rounding of hundreds of tokens adds up."""

    name = "fresh answers"

    def __init__(self) -> None:
        super().__init__()
        self._every = 0  # optimizer steps on each batch of answers; 0: the invariant does not apply

    def start(self, setting: Setting) -> None:
        exact = not drops_out(setting.model) and not is_coarse(setting) and not setting.resumed
        if setting.algo in ("grpo", "rloo") and exact:
            self._every = steps_on_answers(setting.arguments)

    def over(self) -> bool:
        return not self._every

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        if not self._every or step < 1 or (step - 1) % self._every or row.get(CLIPPED, 0.0) != row.get(CLIPPED, 0.0):
            return
        if CLIPPED in row:
            self.hold(
                row[CLIPPED] == 0.0,
                f"a share of {row[CLIPPED]:.3g} was clipped at step {step}, the first on its answers; before any "
                "update the ratio must be 1: the old log-probabilities are not those of the policy that drew the "
                "answers",
            )


def steps_on_answers(arguments: Mapping[str, object]) -> int:
    """How many optimizer steps TRL makes on the answers of one generation; 0 if these do not end with a step."""
    names = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
    numbers = [arguments.get(name) for name in names]
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        return 0
    iterations, per_generation, accumulated = (int(str(number)) for number in numbers)
    batches = iterations * per_generation
    return 0 if batches % accumulated or per_generation % accumulated else batches // accumulated
