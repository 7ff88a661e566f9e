"""What the trainers of GRPO and RLOO are given: arguments, prompts, rewards, and a repeatable evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from canary_mlflow.training.arguments import trainer_arguments
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.datasets.chats import ids_of
from canary_mlflow.training.devices import Device
from canary_mlflow.training.loading import SEED
from canary_mlflow.training.parts import Parts
from canary_mlflow.training.rewards import Answers, Reward, prompts_of, rewards_of

EVALUATED = "num_generations_eval"  # older TRLs evaluate with as many answers as they train with


class RepeatableEvaluation:
    """A mixin for trainers that draw answers: evaluates with the same noise each time, without using the training's."""

    args: Any

    def evaluate(self, *given: Any, **named: Any) -> dict[str, float]:
        """Evaluate as the trainer does, with that noise."""
        with torch.random.fork_rng():
            torch.manual_seed(self.args.seed + SEED)  # other noise than the training's
            found: dict[str, float] = super().evaluate(*given, **named)  # type: ignore[misc]
        return found


def group_arguments(kind: type[Any], config: CanaryConfig, output_dir: Path, device: Device) -> dict[str, Any]:
    """Keyword arguments for GRPOConfig or RLOOConfig."""
    algo = config.algo
    engine: dict[str, Any] = {"use_vllm": True, "vllm_mode": "colocate"} if algo.generation == "vllm" else {}
    if EVALUATED in kind.__dataclass_fields__:
        engine[EVALUATED] = 1  # one answer to each held-out prompt, as in PPO's evaluation
    return trainer_arguments(
        config,
        output_dir,
        device,
        num_generations=algo.num_generations,
        num_iterations=algo.num_iterations,
        max_completion_length=algo.max_new_tokens,
        temperature=algo.temperature,
        beta=algo.beta,
        epsilon=algo.epsilon,
        **engine,
    )


def group_parts(config: CanaryConfig, parts: Parts, device: Device) -> dict[str, Any]:
    """Keyword arguments for both trainers: the model, the prompts, and the rewards of the answers."""
    rewards = rewards_of(config.algo.scored_by(), parts.tokenizer, device.kind)
    return {
        "model": parts.model,
        "processing_class": parts.tokenizer,
        "train_dataset": prompts_of(config, parts.train_dataset),
        "eval_dataset": prompts_of(config, parts.eval_dataset),
        "peft_config": parts.peft_config,
        "reward_funcs": [
            reward_function(reward, name, parts.tokenizer, torch.device(device.kind))
            for name, reward in rewards.items()
        ],
    }


def reward_function(reward: Reward, name: str, tokenizer: Any, device: torch.device) -> Callable[..., list[float]]:
    """The reward in the form that TRL calls: takes texts and token ids, returns a list of scores. `name`: used in the
    names of its series."""

    def score(prompts: list[Any], completion_ids: list[list[int]], **others: Any) -> list[float]:
        columns = {key: value for key, value in others.items() if isinstance(value, list) and key != "completions"}
        rows = [{"prompt": one, **{key: columns[key][at] for key in columns}} for at, one in enumerate(prompts)]
        answers = answers_of(ids_of(prompts, tokenizer), completion_ids, tokenizer.pad_token_id, device, rows)
        with torch.no_grad():
            return [float(value) for value in reward(answers)]

    score.__name__ = name
    return score


def answers_of(
    prompts: list[list[int]],
    answers: list[list[int]],
    padding: int,
    device: torch.device,
    rows: Sequence[Mapping[str, Any]] = (),
) -> Answers:
    """Token ids as the tensors that our rewards read: prompts padded on the left, answers on the right."""
    prompt_ids, prompt_mask = _padded(prompts, padding, device, left=True)
    response_ids, response_mask = _padded(answers, padding, device, left=False)
    return Answers(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        response_ids=response_ids,
        response_mask=response_mask,
        rows=rows,
    )


def _padded(rows: list[list[int]], padding: int, device: torch.device, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    width = max((len(row) for row in rows), default=0)
    ids = torch.full((len(rows), width), padding, dtype=torch.long)
    seen = torch.zeros(len(rows), width, dtype=torch.bool)
    for at, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        ids[at, where], seen[at, where] = torch.tensor(row, dtype=torch.long), True
    return ids.to(device), seen.to(device)
