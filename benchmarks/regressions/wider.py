"""As later.py, for parts of a training that the other collections leave out: `wider.py KIND`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from datasets import Dataset
from later import Course, language
from safetensors.torch import load_file, save_file
from train import callbacks, common, config, kept, lora, model, preference, run, sft, text, texts, tokenizer
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForSeq2Seq,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Scaled(LlamaForCausalLM):
    """A model of one's own, with a table that is computed and not saved."""

    def __init__(self, settings: object) -> None:
        super().__init__(settings)
        self.register_buffer("table", torch.linspace(0.5, 1.5, settings.vocab_size), persistent=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **named: object) -> dict:
        logits = super().forward(input_ids=input_ids, **named).logits * self.table
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def trained(folder: str, model: torch.nn.Module, **given: object) -> dict[str, object]:
    """A language model trained by transformers.Trainer."""
    trainer, seen = language(folder, model, **given)
    trainer.train()
    return seen.told(folder)


def buffers(folder: str) -> dict[str, object]:
    place = str(Path(folder) / "model")
    set_seed(0)
    Scaled(config()).save_pretrained(place)
    return trained(folder, Scaled.from_pretrained(place))


def own_head(folder: str) -> dict[str, object]:
    """An encoder and a decoder from a file with one embedding and a head of its own, as madlad400's."""
    place = Path(folder) / "model"
    set_seed(0)
    small = T5Config(vocab_size=203, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0,
                     tie_word_embeddings=False, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)  # fmt: skip
    T5ForConditionalGeneration(small).save_pretrained(place, safe_serialization=True)
    tensors = load_file(place / "model.safetensors")
    embedded = tensors.pop("shared.weight")
    kept_ones = {name: one for name, one in tensors.items() if name != "encoder.embed_tokens.weight"}
    kept_ones["decoder.embed_tokens.weight"] = embedded.clone()
    kept_ones["lm_head.weight"] = torch.randn(203, 32, generator=torch.Generator().manual_seed(1)) * 0.02
    save_file(kept_ones, place / "model.safetensors", metadata={"format": "pt"})
    words, draw, seen = tokenizer(), random.Random(0), Course()
    rows = [{"input_ids": words(text(draw, 6, 9))["input_ids"], "labels": words(text(draw, 6, 9))["input_ids"]}
            for _ in range(64)]  # fmt: skip
    Trainer(
        model=T5ForConditionalGeneration.from_pretrained(place), args=TrainingArguments(**common(folder)),
        train_dataset=Dataset.from_list(rows), data_collator=DataCollatorForSeq2Seq(words),
        callbacks=callbacks(seen),
    ).train()  # fmt: skip
    return seen.told(folder)


def turns(rows: int = 64) -> Dataset:
    draw = random.Random(0)
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": text(draw, 6, 9)}],
          "completion": [{"role": "assistant", "content": text(draw, 3, 6)}]} for _ in range(rows)]
    )  # fmt: skip


def answers(folder: str) -> dict[str, object]:
    """SFT of answers to prompts, of which only the answers are to be learnt."""
    from trl import SFTConfig, SFTTrainer

    seen = Course()
    args = SFTConfig(**common(folder, bf16=False, max_length=64, completion_only_loss=True))
    SFTTrainer(model=model(), args=args, processing_class=tokenizer(), train_dataset=turns(),
               callbacks=callbacks(seen)).train()  # fmt: skip
    return seen.told(folder)


def long_answers(folder: str) -> dict[str, object]:
    """ORPO where one answer is longer than there is room for."""
    import train

    draw = random.Random(0)
    rows = [{"prompt": text(draw, 40, 50) + " ", "chosen": text(draw, 990, 1000), "rejected": text(draw, 200, 300)}
            for _ in range(16)]  # fmt: skip
    train.pairs = lambda: Dataset.from_list(rows)
    return preference("ORPO", folder, max_length=1024, per_device_train_batch_size=2)


def group(folder: str, trained: torch.nn.Module, prompt: tuple[int, int], **given: object) -> dict[str, object]:
    """GRPO, rewarded for late words."""
    from trl import GRPOConfig, GRPOTrainer

    def late(completions: list[str], **named: object) -> list[float]:
        return [float(sum(int(word[1:]) for word in one.split() if word[1:].isdigit())) / 200 for one in completions]

    seen, words, draw = Course(), tokenizer(), random.Random(0)
    words.model_input_names = ["input_ids", "attention_mask"]
    prompts = Dataset.from_list([{"prompt": text(draw, *prompt)} for _ in range(32)])
    args = GRPOConfig(**common(folder, **{"max_completion_length": 8, "num_generations": 4, "bf16": False, **given}))
    GRPOTrainer(model=trained, args=args, processing_class=words, train_dataset=prompts, reward_funcs=late,
                callbacks=callbacks(seen)).train()  # fmt: skip
    return seen.told(folder)


def long_prompts(folder: str) -> dict[str, object]:
    return group(folder, kept(folder), (12, 16), max_prompt_length=8)


def sampled(folder: str) -> dict[str, object]:
    """A model whose own generation settings are nearly greedy, as Qwen's are, sampled at temperature 1."""
    place = str(Path(folder) / "model")
    first = model()
    first.generation_config.update(do_sample=True, temperature=0.1, top_k=2)
    first.save_pretrained(place)
    return group(folder, LlamaForCausalLM.from_pretrained(place), (3, 6), temperature=1.0)


def preferred(folder: str) -> dict[str, object]:
    from train import dpo

    return dpo(folder)


def quantized(folder: str) -> dict[str, object]:
    """An adapter of a quantized model, made before the trainer."""
    from peft import get_peft_model, prepare_model_for_kbit_training
    from transformers import BitsAndBytesConfig

    place = str(Path(folder) / "model")
    set_seed(0)
    model().save_pretrained(place)
    small = AutoModelForCausalLM.from_pretrained(place, quantization_config=BitsAndBytesConfig(load_in_8bit=True))
    tuned = get_peft_model(prepare_model_for_kbit_training(small), lora(True))
    import train

    train.model = lambda: tuned
    return sft(folder, bf16=False)


def tokenized(folder: str) -> dict[str, object]:
    """SFT of rows that hold tokens already."""
    import train

    words = tokenizer()
    rows = texts().map(lambda row: {"input_ids": words(row["text"])["input_ids"]}, remove_columns=["text"])
    train.texts = lambda: rows
    return sft(folder)


def plain(folder: str) -> dict[str, object]:
    return trained(folder, model())


def resized(folder: str) -> dict[str, object]:
    """A model that gets more words than it had."""
    wider = model()
    wider.resize_token_embeddings(300)
    return trained(folder, wider)


def template(folder: str) -> dict[str, object]:
    """What is saved beside the weights: does the tokenizer's configuration hold the chat template?"""
    trainer, seen = language(folder, model())
    trainer.train()
    place = Path(folder) / "saved"
    trainer.save_model(str(place))
    tokenizer().save_pretrained(place)
    saved = json.loads((place / "tokenizer_config.json").read_text())
    return seen.told(folder, template="chat_template" in saved)


KINDS = {
    "buffers": buffers,
    "own-head": own_head,
    "answers": answers,
    "long-answers": long_answers,
    "long-prompts": long_prompts,
    "sampled": sampled,
    "logs": preferred,
    "quantized": quantized,
    "tokenized": tokenized,
    "shuffled": plain,
    "unwrap": plain,
    "template": template,
    "resized": resized,
    "sampler": lambda folder: group(folder, kept(folder), (3, 6)),
}

if __name__ == "__main__":
    run(KINDS)
