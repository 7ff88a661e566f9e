"""The rewards: a score for each answer, from a rule on its tokens, a reward model, or a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from canary_mlflow.training import reward_sources
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.reward_config import RewardConfig, reads_columns
from canary_mlflow.training.reward_sources import reward_folder

if TYPE_CHECKING:
    from datasets import Dataset


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


def build_reward(spec: RewardConfig, tokenizer: Any, device: torch.device) -> Reward:
    """The reward function of checked settings. Raises SetupError if it cannot be built."""
    return REWARDS[spec.kind](spec, tokenizer, device)


def length_reward(spec: RewardConfig, tokenizer: Any, device: torch.device) -> Reward:
    """0 for an answer of exactly `target` tokens (its end included), falling by scale / target per token off."""

    def score(answers: Answers) -> torch.Tensor:
        length = answers.response_mask.sum(1).float()
        return -spec.scale * (length - spec.target).abs() / spec.target

    return score


def token_share_reward(spec: RewardConfig, tokenizer: Any, device: torch.device) -> Reward:
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


def model_reward(spec: RewardConfig, tokenizer: Any, device: torch.device) -> Reward:
    """scale x the single logit of a sequence classifier, which reads prompt and answer with its own tokenizer."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = reward_folder(spec.path or "")  # the files that the workload names
    try:
        model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=False).to(device).eval()
        reader = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise SetupError(f"reward model {folder} cannot be loaded: {str(error).splitlines()[0]}") from error
    if model.config.num_labels != 1:
        raise SetupError(f"reward model {folder} has {model.config.num_labels} labels; expected 1, the score")

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


def function_reward(spec: RewardConfig, tokenizer: Any, device: torch.device) -> Reward:
    """scale x what a Python function returns for each answer, given as text with the data's columns."""
    function = reward_sources.load_function(spec.path or "")

    def score(answers: Answers) -> torch.Tensor:
        scores = function(
            prompts=[row["prompt"] for row in answers.rows],
            completions=said(answers, tokenizer),
            completion_ids=ids_kept(answers),
            **reward_sources.columns_of(answers.rows),
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


def rewards_of(configs: Sequence[RewardConfig], tokenizer: Any, device: str) -> dict[str, Reward]:
    """The configured rewards, by the names of their series, on the torch `device`. Raises SetupError if one cannot be
    built."""
    found: dict[str, Reward] = {}
    for config in configs:
        name = str(config.path).rpartition(":")[2] if config.kind == "function" else config.kind
        count = sum(one.partition("-")[0] == name for one in found)
        found[f"{name}-{count + 1}" if count else name] = build_reward(config, tokenizer, torch.device(device))
    return found


def prompts_of(config: CanaryConfig, rows: Dataset) -> Dataset:
    """The rows' prompts; with the other columns if a function may read them."""
    return rows if reads_columns(config.algo.scored_by()) else rows.select_columns("prompt")


def sum_of(rewards: Sequence[Reward]) -> Reward:
    """All rewards as one, their sum; a single reward stays as it is."""
    if len(rewards) == 1:
        return rewards[0]

    def score(answers: Answers) -> torch.Tensor:
        return torch.stack([reward(answers) for reward in rewards]).sum(0)

    return score


REWARDS: dict[str, Callable[[RewardConfig, Any, torch.device], Reward]] = {
    "length": length_reward,
    "token_share": token_share_reward,
    "model": model_reward,
    "function": function_reward,
}
