"""PPOTrainer: a transformers.Trainer in which each epoch is one PPO iteration, through public hooks only.

Each pass over its loader makes a rollout and serves it for the updates. Random streams are keyed by their purpose, so
that nothing else a run does can shift them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from canary_mlflow.training.errors import InstabilityError, SetupError
from canary_mlflow.training.ppo.actor_critic import (
    ActorCritic,
    build_actor_critic,
    load_actor_critic,
    reference_of,
    save_checkpoint,
    score_answers,
)
from canary_mlflow.training.ppo.generation import Answerer, Prompts, Sampler, sample, score_all
from canary_mlflow.training.ppo.losses import Batch, Clip, Reduce, ppo_loss, token_logps
from canary_mlflow.training.ppo.rollout import Rollout, shape_rollout
from canary_mlflow.training.ppo.settings import PPOConfig
from canary_mlflow.training.ppo.statistics import PhaseClock, UpdateMeter, rollout_metrics
from canary_mlflow.training.rewards import Answers, Reward


class Stream(IntEnum):
    """What a stream of random numbers is for."""

    PROMPTS = 0
    SAMPLING = 1
    MINIBATCHES = 2
    EVALUATION = 3


def numpy_stream(seed: int, stream: Stream, *key: int) -> np.random.Generator:
    """A NumPy generator that depends only on these arguments."""
    return np.random.default_rng(np.random.SeedSequence([seed, int(stream), *key]))


def torch_stream(device: torch.device, seed: int, stream: Stream, *key: int) -> torch.Generator:
    """A torch generator on `device` that depends only on these arguments."""
    state = np.random.SeedSequence([seed, int(stream), *key]).generate_state(1, np.uint64)[0]
    return torch.Generator(device=device).manual_seed(int(state >> np.uint64(1)))


def prompt_rows(seed: int, iteration: int, *, rank: int, world: int, rows: int, total: int) -> list[int]:
    """Which of total prompts this rank answers in this iteration: every prompt once per pass, reshuffled."""
    first = (iteration * world + rank) * rows
    orders = {
        number: numpy_stream(seed, Stream.PROMPTS, number).permutation(total)
        for number in range(first // total, (first + rows - 1) // total + 1)
    }
    return [int(orders[i // total][i % total]) for i in range(first, first + rows)]


class RolloutLoader:
    """Yields micro-batches; one pass is one iteration.

    Never pass it to accelerator.prepare: that loader fetches one batch ahead, so every rollout would be one optimizer
    step stale, without any error (measured: |log ratio| .07 on the first update).
    """

    def __init__(
        self, args: PPOConfig, collect: Callable[[int], Rollout], key: tuple[int, int], reduce: Reduce
    ) -> None:
        self.args = args
        self.collect = collect
        self.key = key  # (seed, rank)
        self.reduce = reduce
        self.iteration = 0

    def __len__(self) -> int:
        return self.args.micro_batches_per_iteration

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer with the iteration that comes next, also after a resume."""
        self.iteration = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rollout = self.collect(self.iteration)
        parts = self._minibatches(rollout)
        # The losses divide by the tokens of a whole minibatch, over all ranks.
        counts = torch.stack(
            [torch.stack([rollout.policy_mask[part].sum(), rollout.value_mask[part].sum()]) for part in parts]
        )
        for part, tokens in zip(parts, self.reduce(counts).unbind(), strict=True):
            for index in part.chunk(self.args.gradient_accumulation_steps):
                yield {**rollout.rows(index), "policy_tokens": tokens[0], "value_tokens": tokens[1]}

    def _minibatches(self, rollout: Rollout) -> list[torch.Tensor]:
        """Row numbers of every minibatch of the iteration, reshuffled in each PPO epoch."""
        seed, rank = self.key
        random = numpy_stream(seed, Stream.MINIBATCHES, self.iteration, rank)
        parts: list[torch.Tensor] = []
        for _ in range(self.args.ppo_epochs):
            order = torch.from_numpy(random.permutation(len(rollout.scores))).to(rollout.scores.device)
            parts += order.chunk(self.args.num_minibatches)
        return parts


def require_finite(step: int, **named: torch.Tensor) -> None:
    """Raise InstabilityError for the first tensor that holds NaN or infinity."""
    for name, tensor in named.items():
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise InstabilityError(step, f"{bad} of {tensor.numel()} {name.replace('_', ' ')} are not finite")


def require_finite_logs(step: int, logs: Mapping[str, object]) -> None:
    """Raise InstabilityError for the first logged number that is NaN or infinite."""
    for name, value in logs.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InstabilityError(step, f"{name} is {value}")


class AdaptiveKL(TrainerCallback, ExportableState):
    """Moves the coefficient by at most 20 % x sequences / horizon per iteration, towards the target KL.

    sequences: rows per iteration over all ranks; target: nats per sequence, None for a fixed
    coefficient; horizon: sequences. Holds no reference to the trainer: Trainer calls state()
    while it is being constructed, and replaces the object when it resumes from a checkpoint.
    """

    def __init__(self, initial: float, target: float | None, horizon: int, sequences: int) -> None:
        self.initial = initial
        self.target = target
        self.horizon = horizon
        self.sequences = sequences
        self.value = initial

    def state(self) -> dict[str, Any]:
        """What Trainer needs to build this object again."""
        arguments = {name: getattr(self, name) for name in ("initial", "target", "horizon", "sequences")}
        return {"args": arguments, "attributes": {"value": self.value}}

    def update(self, kl: float) -> None:
        """Move the coefficient by the KL of one iteration, in nats per sequence."""
        if self.target is None:
            return
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * self.sequences / self.horizon

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Update from the KL in an iteration's row, so that the coefficient moves before the next rollout."""
        if logs and "kl" in logs:
            self.update(logs["kl"])


class PPOTrainer(Trainer):
    """Trains a causal language model to raise a reward, held near its start by a KL penalty.

    model: the start policy. train_prompts and eval_prompts: texts, or rows of data with a prompt and other columns. The
    reference is ref_model if given, else with peft_config the policy without its adapter, else a frozen copy. sampler
    replaces the drawing of answers (tests, recorded rollouts). Logs one row per optimizer step (loss, grad_norm before
    clipping, learning_rate); the row of an iteration's last step also has rollout_metrics, the update statistics and
    the times.
    """

    args: PPOConfig
    model: ActorCritic
    loss_is_scaled_for_ga = True  # compute_loss divides by the tokens of the whole minibatch

    def __init__(
        self,
        *,
        model: Any,
        args: PPOConfig,
        tokenizer: Any,
        train_prompts: Any,
        reward: Reward,
        eval_prompts: Any = None,
        peft_config: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        ref_model: Any = None,
        sampler: Sampler = sample,
    ) -> None:
        self.answerer = Answerer(tokenizer, args, sampler)
        self.train_prompts = self.answerer.prompts(train_prompts)
        self.eval_prompts = None if eval_prompts is None else self.answerer.prompts(eval_prompts)
        actor_critic = build_actor_critic(model, args.value_head, peft_config)
        controller = AdaptiveKL(
            args.init_kl_coef, args.target_kl, args.kl_horizon, args.rollout_batch_size * args.world_size
        )
        self.reward = reward
        super().__init__(
            model=actor_critic,
            args=args,
            train_dataset=self.train_prompts,
            eval_dataset=self.eval_prompts,
            processing_class=tokenizer,
            data_collator=list,
            callbacks=[controller, *(callbacks or [])],
        )
        self.reference = reference_of(self.model.policy, ref_model, args.device)
        self.clip = Clip(cliprange=args.cliprange, cliprange_value=args.cliprange_value, vf_coef=args.vf_coef)
        self.meter = UpdateMeter()
        self.clock = PhaseClock(args.device)
        self.last_rollout: Rollout | None = None
        self._iteration_metrics: dict[str, float] = {}

    @property
    def kl_controller(self) -> AdaptiveKL:
        """The KL controller; looked up each time, because Trainer replaces it on resume."""
        return next(item for item in self.callback_handler.callbacks if isinstance(item, AdaptiveKL))

    def get_train_dataloader(self) -> Any:
        """The loader that makes rollouts."""
        return RolloutLoader(self.args, self.collect, (self.args.seed, self.args.process_index), self.reduce)

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks."""
        if self.args.world_size == 1:
            return tensor
        summed: torch.Tensor = self.accelerator.reduce(tensor.clone(), reduction="sum")
        return summed

    @torch.no_grad()
    def collect(self, iteration: int) -> Rollout:
        """Sample, score and shape the rollout of one iteration. Raises InstabilityError for anything not finite."""
        args, step = self.args, self.state.global_step
        self.clock.begin()
        self.model.eval()
        rows = prompt_rows(
            args.seed,
            iteration,
            rank=args.process_index,
            world=args.world_size,
            rows=args.rollout_batch_size,
            total=len(self.train_prompts),
        )
        generator = torch_stream(args.device, args.seed, Stream.SAMPLING, iteration, args.process_index)
        answers = self._answer(self.train_prompts, generator, rows)
        self.clock.phase("generate")
        scored = score_answers(
            self.model,
            self.reference,
            answers,
            rows=args.per_device_train_batch_size,
            temperature=args.temperature,
            autocast=self.accelerator.autocast,
        )
        self.clock.phase("score")
        scores = self.reward(answers).float()
        self.clock.phase("reward")
        require_finite(step, scores=scores, values=scored.values)
        require_finite(step, old_log_probabilities=scored.old_logps, reference_log_probabilities=scored.ref_logps)
        coefficient = self.kl_controller.value
        ended = self.answerer.ended(answers)
        rollout = shape_rollout(answers, scored, scores, ended, args, coefficient, self.reduce)
        self._iteration_metrics = rollout_metrics(rollout, coefficient, args.target_kl, self.reduce)
        self.last_rollout = rollout
        self.clock.phase("score")
        return rollout

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The PPO loss of one micro-batch, scaled so that micro-batches and ranks add up to the minibatch mean."""
        responses = inputs["responses"]
        logits, values = model(inputs["input_ids"], inputs["attention_mask"], responses.shape[1])
        new_logps = token_logps(logits, responses, self.args.temperature)
        batch = Batch(**{name: inputs[name] for name in Batch.__dataclass_fields__})
        loss, stats = ppo_loss(new_logps, values, batch, self.clip)
        self.meter.add(stats, first_update=self.state.global_step % self.args.updates_per_iteration == 0)
        # DDP averages gradients over ranks, but the token counts already cover all ranks.
        loss = loss * self.args.world_size
        return (loss, {"logits": logits, "values": values}) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Complete the row of an iteration's last step, log it, then raise InstabilityError if it holds NaN or
        infinity.

        In this order, so that every callback has seen the value that ends the run.
        """
        if "loss" in logs and self.state.global_step % self.args.updates_per_iteration == 0:
            self.clock.phase("update")
            updates = self.meter.close(self.args.updates_per_iteration, self.reduce)
            logs = {**logs, **self._iteration_metrics, **updates, **self.clock.lap()}
        super().log(logs, start_time)
        require_finite_logs(self.state.global_step, logs)

    @torch.no_grad()
    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Mean score and length of answers to the held-out prompts, always drawn with the same noise.

        Touches neither the weights nor any random stream of the training. Raises SetupError without held-out prompts.
        """
        prompts = self.eval_prompts if eval_dataset is None else eval_dataset
        if not isinstance(prompts, Prompts):
            raise SetupError("there are no held-out prompts; expected eval_prompts in the trainer")
        args = self.args
        self.model.eval()
        mine = list(range(len(prompts)))[args.process_index :: args.world_size]
        generator = torch_stream(args.device, args.seed, Stream.EVALUATION, args.process_index)
        sums = score_all(partial(self._answer, prompts, generator), self.reward, mine, args.rollout_batch_size)
        total, length, count = self.reduce(sums.to(args.device)).tolist()
        metrics = {f"{metric_key_prefix}_reward": total / count, f"{metric_key_prefix}_response_length": length / count}
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _answer(self, prompts: Prompts, generator: torch.Generator, rows: Sequence[int]) -> Answers:
        with self.accelerator.autocast():
            return self.answerer.answer(self.model.policy, prompts, rows, generator, step=self.state.global_step)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Trainer's hook for writing a model folder."""
        if self.args.should_save:
            save_checkpoint(self.model, self.processing_class, self.args, Path(output_dir or str(self.args.output_dir)))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Trainer's hook for reading a model folder back."""
        load_actor_critic(self.model, Path(resume_from_checkpoint))
