"""As unseen.py, for regressions that show later than in the first step: `later.py KIND`. It also says what each step
cost, what was saved, and what an evaluation after the training gave."""

from __future__ import annotations

import random
import resource
import time
from pathlib import Path

import torch
from datasets import Dataset
from safetensors import safe_open
from train import Seen, callbacks, common, config, kept, model, run, text, texts, tokenizer
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorForLanguageModeling,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

BEGAN = time.process_time()


class Course(Seen):
    """Everything that was logged, and what each step cost in CPU time."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[dict[str, float]] = []
        self.steps: list[float] = []
        self.at = self.prepared = 0.0
        self.memory = [0, 0]

    def on_train_begin(self, args: object, state: object, control: object, **named: object) -> None:
        self.prepared = self.prepared or time.process_time() - BEGAN
        self.memory[0] = self.memory[0] or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.at = time.process_time()

    def on_step_end(self, args: object, state: object, control: object, **named: object) -> None:
        now = time.process_time()
        self.steps.append(now - self.at)
        self.at = now

    def on_log(self, args: object, state: object, control: object, logs: dict | None = None, **named: object) -> None:
        super().on_log(args, state, control, logs, **named)
        timed = ("runtime", "per_second", "time")
        numbers = {key: value for key, value in (logs or {}).items() if value is not None and not key.endswith(timed)}
        self.all.append({"at": state.global_step, **{key: float(value) for key, value in numbers.items()}})

    def told(self, folder: str, **more: object) -> dict[str, object]:
        """What was seen, with the tensors of each file saved below the folder."""
        self.memory[1] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        usual = sorted(self.steps[1:] or self.steps)
        return {
            "rows": self.rows, "logged": self.all, "steps": len(self.steps), "prepared": round(self.prepared, 2),
            "step": round(usual[len(usual) // 2], 4), "memory": [round(one / 1024) for one in self.memory],
            "saved": {str(path.relative_to(folder)): tensors(path) for path in Path(folder).rglob("*.safetensors")},
            **more,
        }  # fmt: skip


def tensors(path: Path) -> dict[str, list[int]]:
    with safe_open(path, "pt") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 it is no mapping


def classified(rows: int = 64) -> Dataset:
    words = tokenizer()
    return texts(rows).map(
        lambda row, at: {"input_ids": words(row["text"])["input_ids"][:6], "labels": at % 2},
        with_indices=True, remove_columns=["text"],
    )  # fmt: skip


def scorer() -> LlamaForSequenceClassification:
    set_seed(0)
    return LlamaForSequenceClassification(config(num_labels=2))


def epochs(folder: str) -> dict[str, object]:
    """Seventeen batches an epoch, four for a step: the last of an epoch is left over."""
    seen = Course()
    given = common(folder, max_steps=-1, num_train_epochs=3, gradient_accumulation_steps=4)
    Trainer(
        model=scorer(), args=TrainingArguments(**given), train_dataset=classified(66), callbacks=callbacks(seen)
    ).train()
    return seen.told(folder)


def language(folder: str, trained: torch.nn.Module, **given: object) -> tuple[Trainer, Course]:
    words, seen = tokenizer(), Course()
    rows = texts().map(lambda row: {"input_ids": words(row["text"])["input_ids"][:48]}, remove_columns=["text"])
    return Trainer(
        model=trained, args=TrainingArguments(**common(folder, **given)), train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(words, mlm=False), callbacks=callbacks(seen),
    ), seen  # fmt: skip


def decay(folder: str) -> dict[str, object]:
    """Weight decay of a model whose norms are of its own class."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    set_seed(0)
    small = Qwen2Config(vocab_size=203, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256)  # fmt: skip
    trainer, seen = language(
        folder, Qwen2ForCausalLM(small), max_steps=12, weight_decay=0.5, lr_scheduler_type="constant"
    )
    trainer.train()
    return seen.told(folder)


def added_tokens(folder: str) -> dict[str, object]:
    """A tokenizer in Python with many added tokens, as of a Chinese model."""
    from transformers import PreTrainedTokenizer

    class Signs(PreTrainedTokenizer):
        def __init__(self, **named: object) -> None:
            self.table = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
            super().__init__(pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", **named)

        @property
        def vocab_size(self) -> int:
            return len(self.table)

        def get_vocab(self) -> dict[str, int]:
            return {**self.table, **self.added_tokens_encoder}

        def _tokenize(self, text: str, **named: object) -> list[str]:
            return list(text)

        def _convert_token_to_id(self, token: str) -> int:
            return self.table.get(token, 2)

        def _convert_id_to_token(self, index: int) -> str:
            return next((token for token, at in self.table.items() if at == index), "<unk>")

    words, draw = Signs(), random.Random(0)
    signs = [chr(0x4E00 + at) for at in range(1500)]
    words.add_tokens(signs)
    rows = [{"input_ids": words.convert_tokens_to_ids(draw.choices(signs, k=24))} for _ in range(64)]
    set_seed(0)
    wider = config()
    wider.vocab_size = 1600
    seen = Course()
    Trainer(
        model=LlamaForCausalLM(wider), args=TrainingArguments(**common(folder)), train_dataset=Dataset.from_list(rows),
        data_collator=DataCollatorForLanguageModeling(tokenizer(), mlm=False), callbacks=callbacks(seen),
    ).train()  # fmt: skip
    return seen.told(folder)


class OneColumn(torch.utils.data.Dataset):
    """Rows of which only the tokens are read, of a dataset with a transform."""

    def __init__(self) -> None:
        words = tokenizer()
        rows = [{"input_ids": words(row["text"])["input_ids"][:6], "frame": [0.5] * 60_000} for row in texts()]
        self.rows = Dataset.from_list(rows)
        self.rows.set_transform(lambda batch: {key: list(map(torch.tensor, value)) for key, value in batch.items()})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        ids = self.rows["input_ids"][at]
        return {"input_ids": ids, "labels": ids}


def one_column(folder: str) -> dict[str, object]:
    seen = Course()
    Trainer(
        model=model(), args=TrainingArguments(**common(folder, max_steps=12)), train_dataset=OneColumn(),
        callbacks=callbacks(seen),
    ).train()  # fmt: skip
    return seen.told(folder)


def wide(folder: str) -> dict[str, object]:
    """SFT with a large vocabulary, where everything made of logits shows."""
    from trl import SFTConfig, SFTTrainer

    set_seed(0)
    wider = config()
    wider.vocab_size = 32_000
    draw, seen = random.Random(0), Course()
    rows = Dataset.from_list([{"text": text(draw, 90, 100)} for _ in range(64)])
    args = SFTConfig(**common(folder, max_steps=8, max_length=128, bf16=False, gradient_checkpointing=False))
    SFTTrainer(model=LlamaForCausalLM(wider), args=args, processing_class=tokenizer(), train_dataset=rows,
               callbacks=callbacks(seen)).train()  # fmt: skip
    return seen.told(folder)


def adapter_head(folder: str) -> dict[str, object]:
    """An adapter with its own head, saved, loaded again by the base model's class, and evaluated."""
    from peft import LoraConfig

    base, saved = str(Path(folder) / "base"), str(Path(folder) / "saved")
    scorer().save_pretrained(base)
    tuned = AutoModelForSequenceClassification.from_pretrained(base)
    tuned.add_adapter(LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["score"]))
    seen = Course()
    args = TrainingArguments(**common(folder, learning_rate=0.05))
    trainer = Trainer(model=tuned, args=args, train_dataset=classified(), callbacks=callbacks(seen))
    trainer.train()
    before = trainer.evaluate(classified())["eval_loss"]
    tuned.save_pretrained(saved)
    set_seed(1)
    again = AutoModelForSequenceClassification.from_pretrained(saved)
    after = Trainer(model=again, args=args, callbacks=[seen]).evaluate(classified())["eval_loss"]
    return seen.told(folder, loads=[before, after])


def group(
    folder: str, *, weights: list[float] | None = None, prompt: tuple[int, int] = (3, 6), **given: object
) -> dict[str, object]:
    """GRPO for longer, with what nobody gave at its default."""
    from trl import GRPOConfig, GRPOTrainer

    def late(completions: list[str], **named: object) -> list[float]:
        return [float(sum(int(word[1:]) for word in one.split() if word[1:].isdigit())) / 200 for one in completions]

    def many(completions: list[str], **named: object) -> list[float]:
        return [float(len(set(one.split()))) for one in completions]

    seen, words, draw = Course(), tokenizer(), random.Random(0)
    words.model_input_names = ["input_ids", "attention_mask"]
    prompts = Dataset.from_list([{"prompt": text(draw, *prompt)} for _ in range(32)])
    more = {"reward_weights": weights} if weights else {}
    args = GRPOConfig(**common(folder, max_completion_length=8, num_generations=4, bf16=False, temperature=1.0,
                               max_steps=8, **more, **given))  # fmt: skip
    GRPOTrainer(model=kept(folder), args=args, processing_class=words, train_dataset=prompts,
                reward_funcs=[late, many] if weights else late, callbacks=callbacks(seen)).train()  # fmt: skip
    return seen.told(folder)


def resumed(folder: str, **more: object) -> dict[str, object]:
    """Stopped in the second epoch, and taken up again."""
    given = {"save_strategy": "steps", "save_steps": 20, "max_steps": 24, **more}
    trainer, seen = language(folder, model(), **given)
    trainer.train()
    again, later = language(folder, model(), **given)
    again.train(resume_from_checkpoint=str(Path(folder) / "checkpoint-20"))
    return seen.told(folder, resumed=later.rows)


def output_layer(folder: str) -> dict[str, object]:
    """An adapter of the output layer too, saved."""
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(r=4, target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM")
    trainer, seen = language(folder, get_peft_model(kept(folder), adapter))
    trainer.train()
    trainer.model.save_pretrained(str(Path(folder) / "saved"), safe_serialization=True)
    return seen.told(folder)


KINDS = {
    "epochs": epochs,
    "decay": decay,
    "added-tokens": added_tokens,
    "one-column": one_column,
    "wide": wide,
    "adapter-head": adapter_head,
    "group-weighted": lambda folder: group(folder, weights=[0.7, 0.3]),
    "resumed": resumed,
    "output-layer": output_layer,
}

if __name__ == "__main__":
    run(KINDS)
