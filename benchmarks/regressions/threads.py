"""As wider.py, for threads that were searched for by what people say of an upgrade: `threads.py KIND`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from datasets import IterableDataset
from later import Course, language
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from train import callbacks, common, config, kept, labelled, lora, model, run, text, texts, tokenizer
from transformers import (
    AutoConfig,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)
from unseen import plain
from wider import group, trained


class Small(PreTrainedModel):
    """A model of one's own, which draws its weights in place."""

    config_class = LlamaConfig

    def __init__(self, settings: LlamaConfig) -> None:
        super().__init__(settings)
        self.words = torch.nn.Embedding(settings.vocab_size, settings.hidden_size)
        self.head = torch.nn.Linear(settings.hidden_size, settings.vocab_size)
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.02)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **named: object) -> dict:
        logits = self.head(self.words(input_ids))
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def reinitialized(folder: str) -> dict[str, object]:
    """A model of one's own, read from its files: are its weights those?"""
    place = str(Path(folder) / "model")
    set_seed(0)
    first = Small(config())
    with torch.no_grad():
        first.words.weight.mul_(50)
    first.save_pretrained(place)
    return trained(folder, Small.from_pretrained(place))


def streamed(shards: list[int]) -> object:
    """Rows of shards, each with the worker that read it."""
    words = tokenizer()
    for shard in shards:
        draw = random.Random(shard)
        worker = torch.utils.data.get_worker_info()
        for _ in range(16):
            row = words(text(draw, 6, 14))["input_ids"]
            yield {"input_ids": row, "worker": worker.id if worker else 0, "shard": shard}


def shards(folder: str) -> dict[str, object]:
    """Streamed rows in a shuffled order, read by two workers: does each of them get some?"""
    rows = IterableDataset.from_generator(streamed, gen_kwargs={"shards": list(range(8))})
    mixed = rows.shuffle(seed=0, buffer_size=16)
    counts: dict[str, int] = {}
    for batch in torch.utils.data.DataLoader(mixed, batch_size=None, num_workers=2):
        worker = str(int(batch["worker"]))
        counts[worker] = counts.get(worker, 0) + 1
    seen, words = Course(), tokenizer()
    args = TrainingArguments(**common(folder, dataloader_num_workers=2, max_steps=8))
    Trainer(model=model(), args=args, train_dataset=mixed, callbacks=callbacks(seen),
            data_collator=DataCollatorForLanguageModeling(words, mlm=False)).train()  # fmt: skip
    return seen.told(folder, workers=counts)


def framed(folder: str) -> dict[str, object]:
    """A classifier on texts of a tokenizer of DeBERTa's class, which frames them in [CLS] and [SEP]."""
    import sentencepiece
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    place = Path(folder) / "model"
    place.mkdir()
    with (place / "spm.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts(256)["text"]), model_writer=file, vocab_size=60, pad_id=0, bos_id=1, eos_id=2,
            unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]",
            minloglevel=2, hard_vocab_limit=False,
        )  # fmt: skip
    named = {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False, "vocab_type": "spm"}
    (place / "tokenizer_config.json").write_text(json.dumps(named))
    small = DebertaV2Config(vocab_size=400, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                            intermediate_size=64, max_position_embeddings=64, type_vocab_size=0,
                            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
    small.save_pretrained(place)
    words = AutoTokenizer.from_pretrained(place)
    set_seed(0)
    scorer = DebertaV2ForSequenceClassification(small)
    rows = texts().map(
        lambda row, at: {"input_ids": words(row["text"])["input_ids"], "labels": at % 2},
        with_indices=True, remove_columns=["text"],
    )  # fmt: skip
    seen = Course()
    Trainer(model=scorer, args=TrainingArguments(**common(folder)), train_dataset=rows,
            data_collator=DataCollatorWithPadding(words), callbacks=callbacks(seen)).train()  # fmt: skip
    return seen.told(folder, data=sum(len(row) for row in rows["input_ids"]))


def joined(rows: dict[str, list[str]]) -> list[str]:
    """A batch's rows as texts."""
    return [f"{question} {answer}" for question, answer in zip(rows["question"], rows["answer"], strict=False)]


def fine_tuned(folder: str, rows: object, given: dict[str, object], own: dict[str, object]) -> dict[str, object]:
    """SFT with what is given to its settings, and what to the trainer."""
    from trl import SFTConfig, SFTTrainer

    seen = Course()
    trainer = SFTTrainer(model=model(), args=SFTConfig(**common(folder, **given)),
                         processing_class=tokenizer(), train_dataset=rows, callbacks=callbacks(seen),
                         **own)  # fmt: skip
    trainer.train()
    return seen.told(folder)


def list_texts(folder: str) -> dict[str, object]:
    """A function of one's own that makes texts of a batch's rows."""
    rows = labelled().rename_columns({"prompt": "question", "completion": "answer"}).remove_columns("label")
    return fine_tuned(folder, rows, {"max_seq_length": 32}, {"formatting_func": joined})


class Rows(torch.utils.data.Dataset):
    """Tokenized rows that are no table."""

    def __init__(self) -> None:
        words = tokenizer()
        self.rows = [{"input_ids": words(one)["input_ids"]} for one in texts()["text"]]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, list[int]]:
        return self.rows[at]


def torch_rows(folder: str) -> dict[str, object]:
    return fine_tuned(folder, Rows(), {"max_seq_length": 32}, {})


def settings(folder: str) -> dict[str, object]:
    """Settings given to the trainer, as long ago."""
    own = {"max_seq_length": 32, "dataset_text_field": "text", "packing": False}
    return fine_tuned(folder, texts(), {}, own)


class Held(torch.nn.Module):
    """A layer held by another, whose keys are the layer's own."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *given: object, **named: object) -> object:
        return self.inner(*given, **named)

    def __getattr__(self, name: str) -> object:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def state_dict(self, *given: object, **named: object) -> dict:
        return self.inner.state_dict(*given, **named)


def held(folder: str) -> dict[str, object]:
    """An adapter whose layers are held by others, saved after the training."""
    from peft import get_peft_model

    tuned = get_peft_model(model(), lora(True))
    layers = tuned.base_model.model.model.layers
    for at, layer in enumerate(layers):
        layers[at] = Held(layer)
    trainer, seen = language(folder, tuned)
    trainer.train()
    tuned.save_pretrained(str(Path(folder) / "saved"))
    return seen.told(folder)


def new_words(folder: str) -> dict[str, object]:
    """An adapter that trains some words of the embedding and of the output."""
    from peft import LoraConfig, get_peft_model

    tuned = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM",
                       trainable_token_indices={"embed_tokens": [5, 6], "lm_head": [5, 6]})  # fmt: skip
    return trained(folder, get_peft_model(model(), tuned))


def erased(folder: str) -> dict[str, object]:
    """A model that begins texts with a word that its tokenizer does not name, as Qwen's do; what is saved of it?"""
    words = tokenizer()
    words.bos_token = None
    place = Path(folder) / "saved"
    rows = texts().map(lambda row: {"input_ids": words(row["text"])["input_ids"]}, remove_columns=["text"])
    seen = Course()
    trainer = Trainer(model=kept(folder), args=TrainingArguments(**common(folder)), train_dataset=rows,
                      processing_class=words, data_collator=DataCollatorForLanguageModeling(words, mlm=False),
                      callbacks=callbacks(seen))  # fmt: skip
    trainer.train()
    trainer.save_model(str(place))
    return seen.told(folder, begins=AutoConfig.from_pretrained(place).bos_token_id)


class Saves(Trainer):
    """A trainer of one's own, which saves its tokenizer itself."""

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(output_dir)


def own_saver(folder: str) -> dict[str, object]:
    import later

    later.Trainer = Saves
    trainer, seen = language(folder, model())
    trainer.train()
    trainer.save_model(str(Path(folder) / "saved"))
    return seen.told(folder)


class Encoder(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(2))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            states = states + torch.tanh(layer(states))
        return states


class NomicConfig(PretrainedConfig):
    model_type = "nomic_bert"

    def __init__(self, words: int = 203, width: int = 32, **named: object) -> None:
        super().__init__(**named)
        self.words, self.width, self.vocab_size, self.hidden_size = words, width, words, width


class Nomic(PreTrainedModel):
    """A model whose code comes with it, of a type that the library knows too."""

    config_class = NomicConfig

    def __init__(self, settings: NomicConfig) -> None:
        super().__init__(settings)
        self.embeddings = torch.nn.Embedding(settings.words, settings.width)
        self.encoder = Encoder(settings.width)
        self.head = torch.nn.Linear(settings.width, settings.words)
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        pass

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **named: object) -> dict:
        logits = self.head(self.encoder(self.embeddings(input_ids)))
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def renamed(folder: str) -> dict[str, object]:
    """Under which names are the tensors of such a model saved?"""
    set_seed(0)
    trainer, seen = language(folder, Nomic(NomicConfig()))
    trainer.train()
    trainer.save_model(str(Path(folder) / "saved"))
    return seen.told(folder)


def split_otherwise(folder: str) -> dict[str, object]:
    """A tokenizer of GPT-2's class whose own file splits digits one by one, as Granite's does."""
    from transformers.models.gpt2.tokenization_gpt2 import GPT2Tokenizer  # noqa: F401 that the class is there

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: at for at, letter in enumerate(["<pad>", "<eos>", *letters])}
    merges = []
    for pair in ((str(one), str(other)) for one in range(10) for other in range(10)):
        vocabulary["".join(pair)] = len(vocabulary)
        merges.append(pair)
    bytes_ = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bytes_.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bytes_.decoder = decoders.ByteLevel()
    place = Path(folder) / "model"
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<eos>", "unk_token": "<eos>"}
    PreTrainedTokenizerFast(tokenizer_object=bytes_, **special).save_pretrained(place)
    named = json.loads((place / "tokenizer_config.json").read_text())
    (place / "tokenizer_config.json").write_text(json.dumps({**named, "tokenizer_class": "GPT2Tokenizer"}))
    (place / "vocab.json").write_text(json.dumps(vocabulary))
    (place / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{one} {other}\n" for one, other in merges))
    config().save_pretrained(place)
    set_seed(0)
    wider = config()
    wider.vocab_size = 400
    return plain(folder, LlamaForCausalLM(wider), AutoTokenizer.from_pretrained(place))


KINDS = {
    "reinitialized": reinitialized,
    "shards": shards,
    "framed": framed,
    "list-texts": list_texts,
    "torch-rows": torch_rows,
    "settings": settings,
    "held": held,
    "new-words": new_words,
    "erased": erased,
    "own-saver": own_saver,
    "renamed": renamed,
    "split-otherwise": split_otherwise,
    "group-accumulation": lambda folder: group(
        folder, kept(folder), (3, 6), gradient_accumulation_steps=4, max_completion_length=64
    ),
}

if __name__ == "__main__":
    run(KINDS)
