"""A team's own script, in any release: a session of three trainings by the callback, then the version it became.

    python stack_session.py sft|dpo|grpo LEARNING_RATE

Run by benchmarks/stacks.py in each environment, outside of the checkout. What changed its name between releases of TRL
is asked of the signature; all else is as a user writes it.
"""

from __future__ import annotations

import inspect
import random
import sys
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

import canary_mlflow

TEXT = "a cat sat on the mat and the dog ran home while birds sang in tall green trees"
WORDS = TEXT.split()
LINES = [" ".join(WORDS[(7 * i + 3 * j) % len(WORDS)] for j in range(4 + i % 9)) for i in range(80)]
PAIRS = [
    {"prompt": " ".join(one[:3]), "chosen": " " + " ".join(one[3:]), "rejected": " " + " ".join(one[:2:-1])}
    for one in map(str.split, LINES)
]
DATA: dict[str, list[dict[str, str]]] = {
    "sft": [{"text": one} for one in LINES],
    "dpo": PAIRS,
    "grpo": [{"prompt": one[:10]} for one in LINES],
}
STEPS = 40


def tiny(folder: str) -> PreTrainedTokenizerFast:
    """Write a two-layer Llama and its tokenizer."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<eos>"]
    bpe.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", eos_token="<eos>", model_input_names=["input_ids", "attention_mask"]
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = LlamaConfig(vocab_size=len(tokenizer), eos_token_id=1, pad_token_id=0, bos_token_id=None, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def given(kind: Any, **wanted: Any) -> Any:
    """An object of the kind, from those of these arguments that this release knows."""
    known = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in wanted.items() if name in known})


def trainer(algorithm: str, rate: float, seed: int, tokenizer: PreTrainedTokenizerFast) -> Any:
    config, kind = (getattr(trl, f"{algorithm.upper()}{part}") for part in ("Config", "Trainer"))
    rows = list(DATA[algorithm])
    random.Random(0).shuffle(rows)
    arguments = given(
        config, output_dir="out", seed=seed, max_steps=STEPS, per_device_train_batch_size=4, learning_rate=rate,
        per_device_eval_batch_size=4, warmup_steps=0, save_strategy="no", report_to="none", use_cpu=True, bf16=False,
        dataset_text_field="text", max_seq_length=64, max_length=64, max_prompt_length=32, max_completion_length=8,
        num_generations=4, disable_tqdm=True,
    )  # fmt: skip
    return given(
        kind, model=AutoModelForCausalLM.from_pretrained("base"), args=arguments, processing_class=tokenizer,
        tokenizer=tokenizer, train_dataset=Dataset.from_list(rows[8:]), eval_dataset=Dataset.from_list(rows[:8]),
        reward_funcs=lambda completions, **_: [float(one.count("a")) for one in completions],
        callbacks=[canary_mlflow.CanaryCallback()],
    )  # fmt: skip


def main(algorithm: str, rate: float) -> None:
    tokenizer = tiny("base")
    with canary_mlflow.session(f"tiny-{algorithm}") as session:
        for seed in range(3):
            made = trainer(algorithm, rate, seed, tokenizer)
            made.train()
            if algorithm != "grpo":
                made.evaluate()
    made.save_model("weights")
    tokenizer.save_pretrained("weights")
    version = canary_mlflow.register(session.session_id, weights=Path("weights"))
    print("version", getattr(version, "version", version))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
