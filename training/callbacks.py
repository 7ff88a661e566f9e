"""What a run adds to its trainer for people: the progress bar, and its own answers to a few held-out prompts.

Answers are drawn repeatedly during RL, else once training is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from canary_mlflow.tracking.probes.answers import as_text
from canary_mlflow.tracking.reading.samples import Answer, Samples
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.datasets.chats import ids_of
from canary_mlflow.training.mlflow_model import policy_of, router_silent
from canary_mlflow.training.reward_sources import columns_of
from canary_mlflow.training.rewards import prompts_of

if TYPE_CHECKING:
    from datasets import Dataset

QUIET_INTERVAL = 10.0  # seconds between lines where no terminal redraws them


class ProgressBar(TrainerCallback):
    """One line on standard error, redrawn in place on a terminal."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.bar: tqdm[Any] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            interval = 0.1 if sys.stderr.isatty() else QUIET_INTERVAL
            self.bar = tqdm(
                total=state.max_steps,
                desc=self.label,
                unit="step",
                mininterval=interval,
                dynamic_ncols=True,
                bar_format="{desc} {percentage:3.0f}% |{bar:20}| step {n_fmt}/{total_fmt}{postfix} eta {remaining}",
            )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        loss = (logs or {}).get("loss")
        if self.bar is not None and loss is not None:
            self.bar.set_postfix_str(f"loss {float(loss):.4f}", refresh=False)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the line; also called when training breaks off."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


PROMPTS = 4
LOOKS = 5  # times in an RL run, besides its first and its last step
LONGEST = 64  # tokens of an answer if the algorithm itself draws none


class FixedPrompts(TrainerCallback):
    """Draws answers greedily, without using any random stream. Calls `paused` when it is done, as its time belongs to
    no step. With quantized weights it runs only at the end, because a pass in eval mode may repack them."""

    def __init__(
        self, config: CanaryConfig, data: Dataset, samples: Samples, paused: Callable[[], None], trainer: Any
    ) -> None:
        self._trainer = trainer
        self._rows = prompts_of(config, data).select(range(min(PROMPTS, len(data)))).to_list()
        self._prompts, self._samples, self._paused = [row["prompt"] for row in self._rows], samples, paused
        self._tokens = int(getattr(config.algo, "max_new_tokens", LONGEST))
        self._temperature = float(getattr(config.algo, "temperature", 1.0))
        again = bool(config.algo.scored_by()) and config.quantization.name == "none"
        steps = config.train.max_steps * config.algo.updates()
        self._last, self._every = steps, max(1, steps // LOOKS) if again else steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step is over."""
        step = state.global_step
        if step == self._last or step % self._every == 0 or (step == 1 and self._every < self._last):
            self._samples.add(self._asked(step))
            self._paused()

    @torch.no_grad()
    def _asked(self, step: int) -> list[Answer]:
        policy, tokenizer = policy_of(self._trainer), self._trainer.processing_class
        was_training = policy.training
        policy.eval()
        try:
            prompts = {"input_ids": ids_of(self._prompts, tokenizer)}
            given = tokenizer.pad(prompts, return_tensors="pt", padding=True, padding_side="left")
            given = {name: given[name].to(policy.device) for name in ("input_ids", "attention_mask")}
            with router_silent(policy):
                out = policy.generate(
                    **given, do_sample=False, max_new_tokens=self._tokens, pad_token_id=tokenizer.pad_token_id
                )
            answers = out[:, given["input_ids"].shape[1] :]
            kls = self._kl(policy, out, given["attention_mask"], answers)
            rewards = self._rewards(answers)
        finally:
            policy.train(was_training)
        lengths = [int((row != tokenizer.pad_token_id).sum()) for row in answers]
        texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
        return [
            Answer(step=step, kind="fixed", prompt=as_text(prompt), answer=text, length=length, kl=kl, reward=reward)
            for prompt, text, length, kl, reward in zip(self._prompts, texts, lengths, kls, rewards, strict=True)
        ]

    def _rewards(self, answers: Any) -> Sequence[float | None]:
        """The scores that the reward of GRPO, RLOO or PPO gives the answers; None for other algorithms."""
        tokenizer = self._trainer.processing_class
        ids = [[token for token in row if token != tokenizer.pad_token_id] for row in answers.tolist()]
        if hasattr(self._trainer, "reward_funcs"):
            given = {"prompts": self._prompts, "completion_ids": ids, **columns_of(self._rows)}
            return [sum(scores) for scores in zip(*(one(**given) for one in self._trainer.reward_funcs), strict=True)]
        if not hasattr(self._trainer, "reward"):
            return [None] * len(ids)
        from canary_mlflow.training.group_trainer import answers_of

        prompts = ids_of(self._prompts, tokenizer)
        drawn = answers_of(prompts, ids, tokenizer.pad_token_id, answers.device, self._rows)
        return [float(score) for score in self._trainer.reward(drawn)]

    def _kl(self, policy: Any, ids: Any, prompt_mask: Any, answers: Any) -> list[float | None]:
        """log policy - log reference of each greedy answer; None without a separate reference model."""
        reference = getattr(self._trainer, "ref_model", None) or getattr(self._trainer, "reference", None)
        if reference is None:
            return [None] * len(ids)
        kept = answers != self._trainer.processing_class.pad_token_id
        mask = torch.cat([prompt_mask, kept.long()], dim=1)
        own, base = (self._logps(model, ids, mask, answers) for model in (policy, reference))
        return [float(one) for one in ((own - base) * kept).sum(1)]

    def _logps(self, model: Any, ids: Any, mask: Any, answers: Any) -> Any:
        width = answers.shape[1]
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1].float() / self._temperature
        return logits.log_softmax(-1).gather(2, answers.unsqueeze(2)).squeeze(2)
