"""As train.py, for the regressions that no rule was made on: `unseen.py KIND`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from train import WORDS, Seen, callbacks, common, config, finish, lora, model, pairs, run, sft, text, texts, tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)


def plain(
    folder: str, trained: torch.nn.Module | None = None, words: PreTrainedTokenizerFast | None = None, **given: object
) -> dict[str, object]:
    """transformers.Trainer on rows of tokens."""
    trained, words = trained or model(), words or tokenizer()
    rows = texts().map(lambda row: {"input_ids": words(row["text"])["input_ids"][:48]}, remove_columns=["text"])
    seen = Seen()
    return finish(
        Trainer(
            model=trained, args=TrainingArguments(**common(folder, **given)), train_dataset=rows,
            data_collator=DataCollatorForLanguageModeling(words, mlm=False), callbacks=callbacks(seen),
        ), seen
    )  # fmt: skip


def byte_level(folder: str) -> dict[str, object]:
    """A tokenizer of bytes whose configuration names Llama's class, as DeepSeek's does, from a folder."""
    bytes_ = Tokenizer(models.BPE())
    bytes_.pre_tokenizer, bytes_.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learns = trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "<eos>"], initial_alphabet=alphabet)
    bytes_.train_from_iterator([" ".join(WORDS)], learns)
    place = Path(folder) / "model"
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<eos>"}
    PreTrainedTokenizerFast(tokenizer_object=bytes_, **special).save_pretrained(place)
    named = json.loads((place / "tokenizer_config.json").read_text())
    (place / "tokenizer_config.json").write_text(json.dumps({**named, "tokenizer_class": "LlamaTokenizerFast"}))
    config().save_pretrained(place)
    set_seed(0)
    wider = config()
    wider.vocab_size = 400
    return plain(folder, LlamaForCausalLM(wider), AutoTokenizer.from_pretrained(place))


def saved_bf16(folder: str) -> dict[str, object]:
    """A model whose files hold bfloat16, loaded without naming a type."""
    place = str(Path(folder) / "model")
    model().to(torch.bfloat16).save_pretrained(place)
    return plain(folder, AutoModelForCausalLM.from_pretrained(place))


def adapted(folder: str) -> dict[str, object]:
    from peft import get_peft_model

    return plain(folder, get_peft_model(model(), lora(True)))


def classifier(folder: str) -> dict[str, object]:
    """Prompt tuning of a classifier, whose new head is to be trained with the prompt."""
    from peft import PromptTuningConfig, get_peft_model

    set_seed(0)
    head = LlamaForSequenceClassification(config(num_labels=2))
    tuned = get_peft_model(head, PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4))
    words = tokenizer()
    rows = texts().map(
        lambda row, at: {"input_ids": words(row["text"])["input_ids"][:6], "labels": at % 2},
        with_indices=True, remove_columns=["text"],
    )  # fmt: skip
    seen = Seen()
    return finish(
        Trainer(model=tuned, args=TrainingArguments(**common(folder)), train_dataset=rows, callbacks=callbacks(seen)),
        seen,
    )


def column(folder: str) -> dict[str, object]:
    """A whole column tokenized at once, as in the course's third chapter."""
    words, all_ = tokenizer(), texts()
    rows = Dataset.from_dict({"input_ids": words(all_["text"])["input_ids"]})
    seen = Seen()
    return finish(
        Trainer(
            model=model(), args=TrainingArguments(**common(folder)), train_dataset=rows,
            data_collator=DataCollatorForLanguageModeling(words, mlm=False), callbacks=callbacks(seen),
        ), seen
    )  # fmt: skip


def group(folder: str, **given: object) -> dict[str, object]:
    """GRPO for answers with many late words, a reward that differs within nearly every group."""
    from trl import GRPOConfig, GRPOTrainer

    def varied(completions: list[str], **named: object) -> list[float]:
        return [float(sum(int(word[1:]) for word in one.split() if word[1:].isdigit())) for one in completions]

    seen = Seen()
    words = tokenizer()
    words.model_input_names = ["input_ids", "attention_mask"]
    draw = random.Random(0)
    prompts = Dataset.from_list([{"prompt": text(draw, 3, 6)} for _ in range(32)])
    args = GRPOConfig(
        **common(folder, max_completion_length=8, num_generations=4, bf16=False, temperature=1.0, **given)
    )
    return finish(
        GRPOTrainer(model=model(), args=args, processing_class=words, train_dataset=prompts,
                    reward_funcs=varied, callbacks=callbacks(seen)), seen
    )  # fmt: skip


def preferences(folder: str, data: Dataset, **given: object) -> dict[str, object]:
    from trl import DPOConfig, DPOTrainer

    seen = Seen()
    set_seed(0)
    longer = config()
    longer.max_position_embeddings = 4096
    trained = LlamaForCausalLM(longer)
    place = str(Path(folder) / "model")
    trained.save_pretrained(place)
    return finish(
        DPOTrainer(model=LlamaForCausalLM.from_pretrained(place), args=DPOConfig(**common(folder, **given)),
                   processing_class=tokenizer(), train_dataset=data, callbacks=callbacks(seen)), seen
    )  # fmt: skip


def long_pairs() -> Dataset:
    """Answers of more than 1024 tokens."""
    draw = random.Random(0)
    return Dataset.from_list(
        [{"prompt": text(draw, 3, 6) + " ", "chosen": text(draw, 1200, 1300), "rejected": text(draw, 1200, 1300)}
         for _ in range(8)]
    )  # fmt: skip


def own_labels(folder: str) -> dict[str, object]:
    """Rows that were tokenized before, with the prompt's labels masked, and a collator of one's own."""
    from trl import SFTConfig, SFTTrainer

    words = tokenizer()

    def ready(row: dict[str, str]) -> dict[str, list[int]]:
        ids = words(row["text"])["input_ids"][:6]
        return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [-100] * 3 + ids[3:]}

    def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.tensor([row["input_ids"] for row in rows]),
            "attention_mask": torch.tensor([row["attention_mask"] for row in rows]),
            "labels": torch.tensor([row.get("labels", row["input_ids"]) for row in rows]),
        }

    seen = Seen()
    return finish(
        SFTTrainer(model=model(), args=SFTConfig(**common(folder, bf16=False)), processing_class=words,
                   train_dataset=texts().map(ready, remove_columns=["text"]), data_collator=collate,
                   callbacks=callbacks(seen)), seen
    )  # fmt: skip


KINDS = {
    "plain": plain,
    "plain-accumulation": lambda folder: plain(folder, gradient_accumulation_steps=4),
    "smoothing-accumulation": lambda folder: plain(folder, gradient_accumulation_steps=4, label_smoothing_factor=0.1),
    "decay": lambda folder: plain(folder, weight_decay=0.5, lr_scheduler_type="constant"),
    "warmup-ratio": lambda folder: plain(folder, warmup_ratio=0.1),
    "byte-level": byte_level,
    "saved-bf16": saved_bf16,
    "adapted": adapted,
    "classifier": classifier,
    "column": column,
    "group-unscaled": lambda folder: group(folder, scale_rewards=False),
    "dpo-pairs": lambda folder: preferences(folder, pairs(), max_length=32),
    "dpo-long": lambda folder: preferences(folder, long_pairs(), per_device_train_batch_size=2),
    "sft-text": sft,
    "own-labels": own_labels,
}


if __name__ == "__main__":
    run(KINDS)
