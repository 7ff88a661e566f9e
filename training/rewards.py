"""The rewards: a score for each answer, from a rule on its tokens, a reward model, or a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from training import own_reward
from training.errors import SetupError


@dataclass(frozen=True, kw_only=True)
class Answers:
    """R prompts and their answers, as token ids with boolean masks; prompts are padded on the left."""

    prompt_ids: torch.Tensor  # [R, P]
    prompt_mask: torch.Tensor  # [R, P]
    response_ids: torch.Tensor  # [R, T]
    response_mask: torch.Tensor  # [R, T], up to and including the first end of text
    rows: Sequence[Mapping[str, Any]] = ()  # R rows of the data: the original prompt, and the other columns


# Scores [R] in float32, on the device of the answers.
Reward = Callable[[Answers], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class RewardSpec:
    """Which reward, and its settings; fields that a kind does not use are ignored."""

    kind: str
    scale: float = 10.0  # multiplies the raw score
    target: int = 0  # length: the desired number of tokens
    tokens: Sequence[str] = field(default_factory=tuple)  # token_share: first letters that count
    min_tokens: int = 1  # token_share: a shorter answer counts as if it had so many
    path: str | None = None  # model: folder or hub id of a sequence classifier; function: pkg.module:name


def build_reward(spec: RewardSpec, tokenizer: Any, device: torch.device) -> Reward:
    """The reward function that `spec` names. Raises SetupError if it cannot be built."""
    if spec.kind not in REWARDS:
        raise SetupError(f"reward kind is {spec.kind!r}; expected one of {', '.join(REWARDS)}")
    return REWARDS[spec.kind](spec, tokenizer, device)


def length_reward(spec: RewardSpec, tokenizer: Any, device: torch.device) -> Reward:
    """0 for an answer of exactly `target` tokens (its end included), falling by scale / target per token off."""
    if spec.target < 1:
        raise SetupError(f"reward target is {spec.target} tokens; expected at least 1")

    def score(answers: Answers) -> torch.Tensor:
        length = answers.response_mask.sum(1).float()
        return -spec.scale * (length - spec.target).abs() / spec.target

    return score


def token_share_reward(spec: RewardSpec, tokenizer: Any, device: torch.device) -> Reward:
    """scale x the share of an answer's tokens that begin with one of the given letters.

    A shorter answer counts as `min_tokens` long: else one matching token and the end would score as well as a long
    answer, and the seed would decide which of the two a policy finds.
    """
    letters = tuple(letter.lower() for letter in spec.tokens)
    vocabulary = [tokenizer.decode([i]).strip().lower() for i in range(len(tokenizer))]
    wanted = torch.tensor([bool(letters) and text.startswith(letters) for text in vocabulary], device=device)
    if not wanted.any():
        raise SetupError(f"reward tokens are {list(spec.tokens)}; expected first letters of tokens in the vocabulary")

    def score(answers: Answers) -> torch.Tensor:
        # A model's output layer may be padded beyond its tokenizer; such ids never match.
        known = answers.response_ids.clamp(max=len(wanted) - 1)
        hits = wanted[known] & (answers.response_ids < len(wanted)) & answers.response_mask
        return spec.scale * hits.sum(1).float() / answers.response_mask.sum(1).clamp(min=spec.min_tokens)

    return score


def model_reward(spec: RewardSpec, tokenizer: Any, device: torch.device) -> Reward:
    """scale x the single logit of a sequence classifier, which reads prompt and answer with its own tokenizer."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if spec.path is None:
        raise SetupError("reward kind is 'model' without a path; expected the folder or hub id of a reward model")
    if spec.path.startswith((".", "/")) and not Path(spec.path).is_dir():
        raise SetupError(f"reward path {spec.path} is not a folder; expected one with a sequence classifier")
    try:
        model = AutoModelForSequenceClassification.from_pretrained(spec.path, trust_remote_code=False).to(device).eval()
        reader = AutoTokenizer.from_pretrained(spec.path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise SetupError(f"reward model {spec.path} cannot be loaded: {str(error).splitlines()[0]}") from error
    if model.config.num_labels != 1:
        raise SetupError(f"reward model {spec.path} has {model.config.num_labels} labels; expected 1, the score")

    def score(answers: Answers) -> torch.Tensor:
        templated = are_chats(answers) and bool(reader.chat_template)  # a chat template adds the special tokens itself
        if templated:
            chats = [
                [*row["prompt"], *answer] for row, answer in zip(answers.rows, said(answers, tokenizer), strict=True)
            ]
            texts = reader.apply_chat_template(chats, tokenize=False)
        else:
            texts = [
                tokenizer.decode(prompt[seen], skip_special_tokens=True)
                + tokenizer.decode(response[kept], skip_special_tokens=True)
                for prompt, seen, response, kept in zip(
                    answers.prompt_ids, answers.prompt_mask, answers.response_ids, answers.response_mask, strict=True
                )
            ]
        inputs = reader(texts, return_tensors="pt", padding=True, truncation=True, add_special_tokens=not templated).to(
            device
        )
        inputs.pop("token_type_ids", None)
        return spec.scale * model(**inputs).logits.squeeze(-1).float()

    return score


def function_reward(spec: RewardSpec, tokenizer: Any, device: torch.device) -> Reward:
    """scale x what a Python function returns for each answer, given as text with the data's columns."""
    if spec.path is None:
        raise SetupError(
            "reward kind is 'function' without a path; expected its import path, such as my_package:polite"
        )
    function = own_reward.load(spec.path)

    def score(answers: Answers) -> torch.Tensor:
        scores = function(
            prompts=[row["prompt"] for row in answers.rows],
            completions=said(answers, tokenizer),
            completion_ids=ids_kept(answers),
            **own_reward.columns_of(answers.rows),
        )
        return spec.scale * torch.tensor(scores, dtype=torch.float32, device=answers.response_ids.device)

    return score


def are_chats(answers: Answers) -> bool:
    """Whether the prompts are lists of messages."""
    return bool(answers.rows) and not isinstance(answers.rows[0]["prompt"], str)


def said(answers: Answers, tokenizer: Any) -> list[Any]:
    """The answers as texts; in a chat each is an assistant's message."""
    texts = [tokenizer.decode(row, skip_special_tokens=True) for row in ids_kept(answers)]
    return [[{"role": "assistant", "content": text}] for text in texts] if are_chats(answers) else texts


def ids_kept(answers: Answers) -> list[list[int]]:
    """The token ids of each answer, without padding."""
    return [row[kept].tolist() for row, kept in zip(answers.response_ids, answers.response_mask, strict=True)]


REWARDS: dict[str, Callable[[RewardSpec, Any, torch.device], Reward]] = {
    "length": length_reward,
    "token_share": token_share_reward,
    "model": model_reward,
    "function": function_reward,
}
