"""As wider.py, for what people's own code leans on: what a library's function returns, and how it calls a method that
they override: `own.py KIND`."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from datasets import Dataset
from later import Course, language
from train import callbacks, common, model, run, text, tokenizer
from transformers import AutoModelForCausalLM, DataCollatorForSeq2Seq, Trainer, TrainingArguments


def answer_only(folder: str) -> dict[str, object]:
    """Conversations tokenized by hand; the labels of the prompt are masked, by its length in tokens."""
    words, draw, seen = tokenizer(), random.Random(0), Course()
    rows = []
    for _ in range(64):
        prompt = [{"role": "user", "content": text(draw, 6, 9)}]
        whole = [*prompt, {"role": "assistant", "content": text(draw, 3, 6)}]
        ids = words(words.apply_chat_template(whole, tokenize=False))["input_ids"]
        length = len(words.apply_chat_template(prompt))
        rows.append({"input_ids": ids, "labels": [-100] * length + ids[length:]})
    Trainer(
        model=model(), args=TrainingArguments(**common(folder)), train_dataset=Dataset.from_list(rows),
        data_collator=DataCollatorForSeq2Seq(words), callbacks=callbacks(seen),
    ).train()  # fmt: skip
    return seen.told(folder)


class Weighted(Trainer):
    """A loss of one's own."""

    def compute_loss(self, model: torch.nn.Module, inputs: dict, return_outputs: bool = False) -> object:
        outputs = model(**inputs)
        loss = outputs["loss"] * 0.5
        return (loss, outputs) if return_outputs else loss


def own_loss(folder: str) -> dict[str, object]:
    import later

    later.Trainer = Weighted
    trainer, seen = language(folder, model())
    trainer.train()
    return seen.told(folder)


def half_loaded(folder: str) -> dict[str, object]:
    """Weights that are kept in bfloat16, loaded without a word about their type, and trained under autocast."""
    place = str(Path(folder) / "model")
    model().to(torch.bfloat16).save_pretrained(place)
    trainer, seen = language(folder, AutoModelForCausalLM.from_pretrained(place), bf16=True)
    trainer.train()
    return {**seen.told(folder), "type": str(next(trainer.model.parameters()).dtype)}


KINDS = {"answer-only": answer_only, "own-loss": own_loss, "half-loaded": half_loaded}

if __name__ == "__main__":
    run(KINDS)
