"""The tiny GPT-NeoX (Pythia's architecture) and its byte-level BPE tokenizer, built from code and kept in the cache."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from canary_mlflow.training.assets import sentences
from canary_mlflow.training.assets.cache import build_once, check_buildable, recipe_digest

VOCABULARY = 512  # the 256 bytes, two specials, 254 merges
END_OF_TEXT, PADDING = "<|endoftext|>", "<|padding|>"  # as in Pythia's tokenizer
ARCHITECTURE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
LINEAR_LAYERS = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h", "embed_out")
WEIGHT_SEED = 20240229


def tiny_model_folder() -> Path:
    """Return the folder of the embedded model, in Transformers' layout; built on first use, in seconds."""
    return build_once(_place(), _build)


def check_tiny_model() -> None:
    """Raise SetupError unless the model is in the cache or can be built there; imports no torch."""
    check_buildable(_place())


def tiny_model_digest() -> str:
    """Return a digest of the embedded model's recipe. It excludes the versions of the packages that build it: the gate
    must judge what a new version makes of the same recipe, not refuse it."""
    return recipe_digest(
        {
            "architecture": ARCHITECTURE,
            "weight_seed": WEIGHT_SEED,
            "vocabulary": VOCABULARY,
            "corpus": corpus(),
        }
    )


def _place() -> str:
    builders = {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    return f"tiny-neox-{tiny_model_digest()}-{recipe_digest(builders)[:8]}"


def corpus() -> list[str]:
    """Return the sentences that the tokenizer is trained on: every phrase of the embedded data."""
    lines = []
    for number, (task, tips) in enumerate(sentences.TASKS):
        for offset, question in enumerate(sentences.QUESTIONS):
            context = sentences.CONTEXTS[(number + offset) % len(sentences.CONTEXTS)]
            lines.append(f"Q: {question.format(task=task, context=context)}\nA:")
        lines += [f" {advice.format(tip=tip)}" for advice in sentences.ADVICE for tip in tips]
        lines += [f" {text.format(task=task)}" for text in sentences.REFUSALS + sentences.EVASIONS]
    spoken = sentences.KIND_OPENINGS + sentences.KIND_ENDINGS + sentences.RUDE_OPENINGS + sentences.RUDE_ENDINGS
    return lines + [f" {text}" for text in spoken for _ in range(len(sentences.TASKS))]


def _build(folder: Path) -> None:
    _save_tokenizer(folder)
    _save_model(folder)


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=PADDING,
        model_max_length=ARCHITECTURE["max_position_embeddings"],
    )
    wrapped.save_pretrained(folder)


def _save_model(folder: Path) -> None:
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        **ARCHITECTURE, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, pad_token_id=1, dtype="float32"
    )
    with torch.random.fork_rng(devices=[]):  # so that the caller's random numbers do not depend on a cold cache
        torch.default_generator.manual_seed(WEIGHT_SEED)  # torch.manual_seed would reseed the caller's GPUs
        GPTNeoXForCausalLM(config).save_pretrained(folder)
