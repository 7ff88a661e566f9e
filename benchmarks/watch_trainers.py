"""The trainers of the watch's sessions, with settings that a user might choose and data that a fault can spoil."""

from __future__ import annotations

import random
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback
from watch_faults import Fault
from watch_worlds import World, load, load_scorer


def settings_of(algo: str, world: World, draw: random.Random) -> dict[str, Any]:
    """Settings that a user might choose; every draw of them learns."""
    chosen: dict[str, Any] = {
        "learning_rate": world.rates[algo] * draw.choice((0.5, 1.0, 2.0)),
        "lr_scheduler_type": draw.choice(("constant", "linear", "cosine")),
        "warmup_steps": draw.choice((0, 5, 10)),
    }
    if algo in ("grpo", "rloo"):
        chosen |= {
            "beta": draw.choice((0.0, 0.02, 0.1)),
            "num_generations": draw.choice((4, 8)),
            "temperature": draw.choice((0.8, 1.0)),
            "per_device_train_batch_size": draw.choice((16, 24)),
        }
    if algo == "grpo":
        chosen |= {
            "loss_type": draw.choice(("grpo", "dr_grpo", "dapo", "bnpo")),
            "scale_rewards": draw.choice(("group", "none")),
        }
    if algo == "ppo":
        chosen |= {"init_kl_coef": draw.choice((0.02, 0.1)), "rollout_batch_size": draw.choice((16, 24)),
                   "ppo_epochs": draw.choice((1, 2)), "kl_horizon": 640}  # fmt: skip
    if algo == "dpo":
        chosen |= {"beta": draw.choice((0.05, 0.1, 0.3)), "loss_type": draw.choice(("sigmoid", "ipo")),
                   "per_device_train_batch_size": draw.choice((4, 8))}  # fmt: skip
    if algo == "kto":
        chosen |= {"beta": draw.choice((0.05, 0.1, 0.3)), "loss_type": draw.choice(("kto", "apo_zero_unpaired")),
                   "per_device_train_batch_size": draw.choice((8, 16))}  # fmt: skip
    if algo == "sft":
        chosen |= {"per_device_train_batch_size": draw.choice((4, 8))}
    if algo == "reward":
        chosen |= {"per_device_train_batch_size": draw.choice((4, 8)),
                   "center_rewards_coefficient": draw.choice((None, 0.01))}  # fmt: skip
    chosen["rollout_batch_size" if algo == "ppo" else "per_device_train_batch_size"] *= world.batch
    return chosen


class Striking(TrainerCallback):
    """Lets a fault strike before each step from its onset on."""

    def __init__(self, fault: Fault | None, onset: int) -> None:
        self.fault, self.onset, self.trainer, self.since = fault, onset, None, 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        iteration = state.global_step // getattr(args, "updates_per_iteration", 1) + 1
        self.since = max(0, iteration - self.onset + 1)
        if self.fault and self.fault.strike and self.since:
            self.fault.strike(self.trainer, self.since)


def _online(world: World, folder: str, fault: Fault | None, striking: Striking, draw: random.Random,
            chosen: dict[str, Any], steps: int, *, kind: str) -> Any:  # fmt: skip
    import trl

    prompts = [{"prompt": prompt} for prompt, _ in world.pairs]
    _, tokenizer = load(folder)

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return _rewards(world, fault, striking, prompts, completions)

    fixed = {"max_steps": steps, "max_completion_length": world.answer_tokens, "logging_steps": 1}
    fixed |= {"gradient_checkpointing": False, "activation_checkpointing": False}
    return getattr(trl, f"{kind}Trainer")(
        model=folder,
        reward_funcs=reward,
        args=getattr(trl, f"{kind}Config")(**fixed, **chosen),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(prompts),
        callbacks=[striking],
    )


def _rewards(world: World, fault: Fault | None, striking: Striking, prompts: list[str], answers: list[str]) -> Any:
    hit = fault is not None and striking.since > 0
    asked = prompts[len(prompts) // 2 :] + prompts[: len(prompts) // 2] if hit and fault.shuffled else prompts
    scores = [world.score(prompt, answer) for prompt, answer in zip(asked, answers, strict=True)]
    if hit and fault.reward:
        scores = [fault.reward(one, answer, striking.since) for one, answer in zip(scores, answers, strict=True)]
    return scores


def _ppo(world: World, folder: str, fault: Fault | None, striking: Striking, draw: random.Random,
         chosen: dict[str, Any], steps: int) -> Any:  # fmt: skip
    from canary_mlflow.training.ppo.settings import PPOConfig
    from canary_mlflow.training.ppo.trainer import PPOTrainer

    model, tokenizer = load(folder)

    def reward(answers: Any) -> torch.Tensor:
        asked = tokenizer.batch_decode(answers.prompt_ids, skip_special_tokens=True)
        given = [ids[mask] for ids, mask in zip(answers.response_ids, answers.response_mask, strict=True)]
        said = tokenizer.batch_decode(given, skip_special_tokens=True)
        return torch.tensor(_rewards(world, fault, striking, asked, said))

    fixed = {"iterations": steps, "max_new_tokens": world.answer_tokens}
    return PPOTrainer(
        model=model,
        args=PPOConfig(**fixed, **chosen),
        tokenizer=tokenizer,
        train_prompts=[prompt for prompt, _ in world.pairs],
        reward=reward,
        callbacks=[striking],
    )


def _dpo(world: World, folder: str, fault: Fault | None, striking: Striking, draw: random.Random,
         chosen: dict[str, Any], steps: int) -> Any:  # fmt: skip
    from trl import DPOConfig, DPOTrainer

    model, tokenizer = load(folder)
    pairs = _pairs(world, fault, striking, draw, chosen, steps)
    args = DPOConfig(max_steps=steps, logging_steps=1, activation_checkpointing=False, **chosen)
    return _in_order(DPOTrainer(model=model, args=args, processing_class=tokenizer,
                                train_dataset=Dataset.from_list(pairs), callbacks=[striking]))  # fmt: skip


def _reward(world: World, folder: str, fault: Fault | None, striking: Striking, draw: random.Random,
            chosen: dict[str, Any], steps: int) -> Any:  # fmt: skip
    from trl import RewardConfig, RewardTrainer

    model, tokenizer = load_scorer(folder)
    pairs = _pairs(world, fault, striking, draw, chosen, steps)
    args = RewardConfig(max_steps=steps, logging_steps=1, activation_checkpointing=False, **chosen)
    return _in_order(RewardTrainer(model=model, args=args, processing_class=tokenizer,
                                   train_dataset=Dataset.from_list(pairs), callbacks=[striking]))  # fmt: skip


def _pairs(world: World, fault: Fault | None, striking: Striking, draw: random.Random, chosen: dict[str, Any],
           steps: int) -> list[dict[str, str]]:  # fmt: skip
    rows, from_row = _drawn(world, striking, draw, steps * chosen["per_device_train_batch_size"], steps)
    pairs = []
    for at, (prompt, good) in enumerate(rows):
        poor = world.poor(prompt, good, draw)
        kind = fault.data if fault and at >= from_row else ""
        good, poor = _spoiled(kind, world, good, poor, draw)
        wrong = 0.5 if kind == "drawn" else world.noise
        if wrong and draw.random() < wrong:
            good, poor = poor, good
        pairs.append({"prompt": prompt, "chosen": good, "rejected": poor})
    return pairs


def _kto(world: World, folder: str, fault: Fault | None, striking: Striking, draw: random.Random,
         chosen: dict[str, Any], steps: int) -> Any:  # fmt: skip
    from trl import KTOConfig, KTOTrainer

    model, tokenizer = load(folder)
    rows, from_row = _drawn(world, striking, draw, steps * chosen["per_device_train_batch_size"], steps)
    judged = []
    for at, (prompt, good) in enumerate(rows):
        kind = fault.data if fault and at >= from_row else ""
        good, poor = _spoiled(kind, world, good, world.poor(prompt, good, draw), draw)
        is_good = draw.random() < 0.5
        wrong = draw.random() < (0.5 if kind == "drawn" else world.noise)
        judged.append({"prompt": prompt, "completion": good if is_good else poor, "label": is_good != wrong})
    args = KTOConfig(max_steps=steps, logging_steps=1, activation_checkpointing=False, **chosen)
    return _in_order(KTOTrainer(model=model, args=args, processing_class=tokenizer,
                                train_dataset=Dataset.from_list(judged), callbacks=[striking]))  # fmt: skip


def _sft(world: World, folder: str, fault: Fault | None, striking: Striking, draw: random.Random,
         chosen: dict[str, Any], steps: int) -> Any:  # fmt: skip
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = load(folder)
    rows, from_row = _drawn(world, striking, draw, steps * chosen["per_device_train_batch_size"], steps)
    texts = []
    for at, (prompt, good) in enumerate(rows):
        kind = fault.data if fault and at >= from_row else ""
        if kind == "random":
            good = "".join(draw.sample(good, len(good)))
        elif kind == "wrong":
            good = world.poor(prompt, world.poor(prompt, good, draw), draw)[::-1]
        elif kind == "no_prompt":
            prompt = ""
        good, _ = _spoiled(kind, world, good, "", draw)
        if world.noise and draw.random() < world.noise:
            good = world.poor(prompt, good, draw)
        texts.append({"text": prompt + good})
    args = SFTConfig(max_steps=steps, logging_steps=1, activation_checkpointing=False, **chosen)
    return _in_order(SFTTrainer(model=model, args=args, processing_class=tokenizer,
                                train_dataset=Dataset.from_list(texts), callbacks=[striking]))  # fmt: skip


def _drawn(
    world: World, striking: Striking, draw: random.Random, count: int, steps: int
) -> tuple[list[tuple[str, str]], int]:
    return draw.choices(world.pairs, k=count), (striking.onset - 1) * count // steps


def _spoiled(kind: str, world: World, good: str, poor: str, draw: random.Random) -> tuple[str, str]:
    """A row's good and poor answer, after what a fault of the data does to them."""
    if kind == "swapped":
        return poor, good
    if kind == "others":  # the answers to another prompt
        prompt, good = draw.choice(world.pairs)
        return good, world.poor(prompt, good, draw)
    if kind == "near":  # alike but for one letter
        at = draw.randrange(len(good) - 1)
        return good, good[:at] + draw.choice(good[:-1]) + good[at + 1 :]
    return good, poor


def _in_order(trainer: Any) -> Any:
    trainer._get_train_sampler = lambda dataset=None: SequentialSampler(trainer.train_dataset)
    return trainer


BUILD: dict[str, Any] = {
    "grpo": lambda *words: _online(*words, kind="GRPO"),
    "rloo": lambda *words: _online(*words, kind="RLOO"),
    "ppo": _ppo,
    "dpo": _dpo,
    "kto": _kto,
    "sft": _sft,
    "reward": _reward,
}
