"""Small worlds that the watch's sessions train in: a model that knows a little, its data, and a reward.

`words` (GPT-NeoX, byte-level BPE): household tips; a graded reward. `sums` (Llama, one token a character): additions;
right or wrong. The rules of the watch were made on the first one; the second one was kept for the final table, and has
been looked at since. `turns` (Qwen, one token a character): letters to be said backwards, scored by a noisy judge; the
third look at GRPO and RLOO. `turns_early`: the same with a tenth of its given answers wrong, for the other trainers.
`turns_judged`: the same with mistyped answers as the worse ones, for reward models.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer, WordLevelTrainer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPTNeoXConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from canary_mlflow.training.assets import sentences

PAD, END = "<pad>", "<eos>"
Score = Callable[[str, str], float]


@dataclass(frozen=True, kw_only=True)
class World:
    """`pairs`: prompt and a good answer. `poor`: a worse answer to the same prompt. `score`: of a prompt's answer.
    `lessons`: steps of pretraining, after which a policy is far from perfect. `batch`: examples for each usual one.
    `noise`: the share of given answers that are the worse one, of labels that are wrong. `held_out`: pairs that nothing
    is trained on."""

    name: str
    config: Callable[[int], PretrainedConfig]
    tokenizer: Callable[[list[str]], Tokenizer]
    pairs: list[tuple[str, str]]
    poor: Callable[[str, str, random.Random], str]
    score: Score
    answer_tokens: int
    lessons: int
    rates: dict[str, float]  # algorithm → a learning rate at which it learns
    batch: int = 1
    noise: float = 0.0
    held_out: tuple[tuple[str, str], ...] = ()

    def folder(self, place: Path) -> str:
        """The folder of the pretrained model, which is made on first use."""
        folder = place / self.name
        if not (folder / "done").exists():
            _pretrain(self, folder)
            (folder / "done").write_text("")
        return str(folder)


def _pretrain(world: World, folder: Path) -> None:
    torch.manual_seed(7)
    texts = [prompt + answer for prompt, answer in world.pairs]
    made = world.tokenizer(texts)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token=PAD, eos_token=END, padding_side="left")
    model = AutoModelForCausalLM.from_config(world.config(len(tokenizer)))
    optimizer, draw = torch.optim.AdamW(model.parameters(), 3e-3), random.Random(7)
    for _ in range(world.lessons):
        batch = tokenizer([text + END for text in draw.sample(texts, 16)], return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(folder: str) -> tuple[Any, Any]:
    """Model and tokenizer."""
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder, padding_side="left")


def load_scorer(folder: str) -> tuple[Any, Any]:
    """The same model with a new head that gives one score, and the tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(7)  # the head's first weights, which an evaluation compares with
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    return model, load(folder)[1]


def _bpe(texts: list[str]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts,
        BpeTrainer(vocab_size=400, special_tokens=[PAD, END], initial_alphabet=alphabet, show_progress=False),
    )
    return made


def _characters(texts: list[str]) -> Tokenizer:
    made = Tokenizer(models.WordLevel(unk_token=PAD))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    made.train_from_iterator(texts, WordLevelTrainer(special_tokens=[PAD, END], show_progress=False))
    return made


_SIZES = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96}
_ENDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}


def _words_score(prompt: str, answer: str) -> float:
    """The share of at least four words that begin with a, t or s."""
    words = answer.split()
    return sum(word[0] in "ats" for word in words) / max(len(words), 4)


def _sums_score(prompt: str, answer: str) -> float:
    """1 for the right number, and 0.2 for a full stop after it."""
    left, right = prompt.rstrip("=").split("+")
    return float(answer.rstrip(".") == str(int(left) + int(right))) + 0.2 * answer.endswith(".")


def _turns_score(prompt: str, answer: str) -> float:
    """The share of letters in their place, plus 0.3 for a full stop after them and a judge's noise."""
    wanted = prompt.rstrip("=")[::-1]
    right = sum(one == other for one, other in zip(wanted, answer, strict=False)) / len(wanted)
    return right + 0.3 * answer.endswith(".") + random.Random(prompt + answer).gauss(0.0, 0.2)


def _turns(seed: int, count: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(3, 5))) for _ in range(count)]
    return [(f"{word}=", f"{word[::-1]}.") for word in words]


def _mistyped(answer: str, draw: random.Random) -> str:
    """With g or h, which good answers have too, in place of one or two letters."""
    wrong = draw.sample(range(len(answer) - 1), draw.randint(1, 2))
    return "".join(draw.choice("gh") if at in wrong else letter for at, letter in enumerate(answer))


_TIPS = [(f"{task}:", f" {tip}") for task, tips in sentences.TASKS for tip in tips]
_TURNS = _turns(7, 400)
_SUMS = [(f"{a}+{b}=", f"{a + b}.") for a in range(20) for b in range(20)]

WORLDS = {
    "words": World(
        name="words",
        config=lambda size: GPTNeoXConfig(vocab_size=size, max_position_embeddings=64, **_SIZES, **_ENDS),
        tokenizer=_bpe,
        pairs=_TIPS,
        poor=lambda prompt, answer, draw: " ".join(draw.sample(answer.split(), len(answer.split()))),
        score=_words_score,
        answer_tokens=12,
        lessons=90,
        rates={"grpo": 1e-3, "rloo": 1e-3, "ppo": 1e-3, "dpo": 2e-4, "sft": 1e-3},
    ),
    "sums": World(
        name="sums",
        config=lambda size: LlamaConfig(vocab_size=size, max_position_embeddings=64, **_SIZES, **_ENDS),
        tokenizer=_characters,
        pairs=_SUMS,
        poor=lambda prompt, answer, draw: f"{max(0, int(answer[:-1]) + draw.choice((-10, -2, -1, 1, 2, 10)))}.",
        score=_sums_score,
        answer_tokens=6,
        lessons=500,
        rates={"grpo": 1e-3, "rloo": 1e-3, "ppo": 1e-3, "dpo": 2e-4, "sft": 1e-3},
    ),
    "turns": World(
        name="turns",
        config=lambda size: Qwen2Config(
            vocab_size=size, max_position_embeddings=64, num_key_value_heads=2, **_SIZES, **_ENDS
        ),
        tokenizer=_characters,
        pairs=_TURNS,
        poor=lambda prompt, answer, draw: "".join(draw.sample(answer[:-1], len(answer) - 1)) + ".",
        score=_turns_score,
        answer_tokens=8,
        lessons=250,
        rates={"grpo": 1e-3, "rloo": 1e-3},
    ),
}
WORLDS["turns_early"] = replace(  # after more lessons there would be little left to learn from given answers
    WORLDS["turns"],
    name="turns_early",
    lessons=60,
    batch=4,
    noise=0.1,
    held_out=tuple(pair for pair in _turns(8, 100) if pair not in _TURNS)[:64],
    rates={"ppo": 1.5e-3, "dpo": 4e-4, "kto": 1e-4, "sft": 1e-3},
)
WORLDS["turns_judged"] = replace(  # so small a model cannot see within 100 steps whether an answer fits its prompt
    WORLDS["turns_early"],
    name="turns_judged",
    poor=lambda prompt, answer, draw: _mistyped(answer, draw),
    rates={"reward": 1e-3},
)
