"""As threads.py, for changes that raise nothing: `silent.py KIND`."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable
from pathlib import Path

import torch
from datasets import Dataset
from later import Course, language, resumed
from train import (
    callbacks,
    common,
    dpo,
    finish,
    kept,
    labelled,
    lora,
    model,
    reward,
    run,
    text,
    texts,
    tokenizer,
)
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments, set_seed
from unseen import plain
from wider import template, trained


def turns(content: str, role: str = "assistant") -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def double_eos(folder: str) -> dict[str, object]:
    """Conversations of which one answer is preferred, with a template that ends each turn itself."""
    import train

    words, draw = tokenizer(), random.Random(0)
    words.chat_template = "{% for m in messages %}{{ m['content'] }} <eos> {% endfor %}"
    rows = [{"prompt": turns(text(draw, 3, 6), "user"), "chosen": turns(text(draw, 3, 8)),
             "rejected": turns(text(draw, 3, 8))} for _ in range(64)]  # fmt: skip
    train.tokenizer, train.pairs = lambda: words, lambda: Dataset.from_list(rows)
    return dpo(folder)


def tuned(folder: str, start: object, **given: object) -> dict[str, object]:
    """SFT of plain texts by a model, or by the name of one."""
    from trl import SFTConfig, SFTTrainer

    seen, words = Course(), given.pop("words", None) or tokenizer()
    fields = SFTConfig.__dataclass_fields__
    limit = {"max_length" if "max_length" in fields else "max_seq_length": 32}
    args = SFTConfig(**common(folder, bf16=False, **limit, **given))
    trainer = SFTTrainer(model=start, args=args, processing_class=words, train_dataset=texts(),
                         callbacks=callbacks(seen))  # fmt: skip
    trainer.train()
    return seen.told(folder, weights=str(next(trainer.model.parameters()).dtype))


def experts(**more: object) -> torch.nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    set_seed(0)
    return MixtralForCausalLM(
        MixtralConfig(vocab_size=203, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                      num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, pad_token_id=0,
                      max_position_embeddings=256, **more)
    )  # fmt: skip


def twice_aux(folder: str) -> dict[str, object]:
    """Experts whose router is balanced by a loss of its own."""
    return tuned(folder, experts(output_router_logits=True, router_aux_loss_coef=0.02), gradient_checkpointing=False)


def pad_is_eos(folder: str) -> dict[str, object]:
    words = tokenizer()
    words.pad_token = words.eos_token
    return tuned(folder, model(), words=words)


def group(folder: str, **given: object) -> dict[str, object]:
    """GRPO, rewarded for late words; what is not given is the library's."""
    from trl import GRPOConfig, GRPOTrainer

    def late(completions: list[str], **named: object) -> list[float]:
        return [float(sum(int(word[1:]) for word in one.split() if word[1:].isdigit())) / 200 for one in completions]

    seen, words, draw = Course(), tokenizer(), random.Random(0)
    words.model_input_names = ["input_ids", "attention_mask"]
    prompts = Dataset.from_list([{"prompt": text(draw, 3, 6)} for _ in range(32)])
    args = GRPOConfig(**common(folder, num_generations=4, bf16=False, gradient_checkpointing=False, **given))
    GRPOTrainer(model=kept(folder), args=args, processing_class=words, train_dataset=prompts, reward_funcs=late,
                callbacks=callbacks(seen)).train()  # fmt: skip
    return seen.told(folder)


def divergence(folder: str) -> dict[str, object]:
    """DPO with another divergence than the usual one, by the library's own name for it."""
    from trl.trainer.dpo_config import FDivergenceType

    return dpo(folder, bf16=False, f_divergence_type=FDivergenceType.JS_DIVERGENCE)


def distilled(folder: str) -> dict[str, object]:
    """A teacher's judgement of own answers, of a tokenizer that pads with what ends a text."""
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    words, draw, seen = tokenizer(), random.Random(0), Course()
    words.pad_token = words.eos_token
    words.chat_template = "{% for m in messages %}{{ m['content'] }} <eos> {% endfor %}"
    rows = [{"messages": [*turns(text(draw, 3, 6), "user"), *turns(text(draw, 3, 8))]} for _ in range(64)]
    args = GKDConfig(
        **common(folder, bf16=False, lmbda=1.0, max_new_tokens=64, max_length=64, gradient_checkpointing=False)
    )
    teacher = model()
    with torch.no_grad():
        teacher.lm_head.weight.mul_(3)
    GKDTrainer(model=model(), teacher_model=teacher, args=args, processing_class=words,
               train_dataset=Dataset.from_list(rows), callbacks=callbacks(seen)).train()  # fmt: skip
    return seen.told(folder)


def untied(folder: str) -> dict[str, object]:
    """A masked language model from its files, whose head is the table of its words."""
    from transformers import CamembertConfig, CamembertForMaskedLM

    place = str(Path(folder) / "model")
    set_seed(0)
    small = CamembertConfig(vocab_size=203, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                            intermediate_size=64, max_position_embeddings=80, hidden_dropout_prob=0.0,
                            attention_probs_dropout_prob=0.0, pad_token_id=0)  # fmt: skip
    first = CamembertForMaskedLM(small)
    with torch.no_grad():
        first.roberta.embeddings.word_embeddings.weight.mul_(30)
    first.save_pretrained(place)
    set_seed(1)
    return trained(folder, CamembertForMaskedLM.from_pretrained(place))


def inverse_layers(folder: str) -> dict[str, object]:
    """A model whose attention is scaled by the place of its layer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    set_seed(0)
    small = GPT2Config(vocab_size=203, n_embd=32, n_layer=4, n_head=2, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
                       attn_pdrop=0.0, initializer_range=0.4, scale_attn_by_inverse_layer_idx=True)  # fmt: skip
    return trained(folder, GPT2LMHeadModel(small))


def left_scores(folder: str) -> dict[str, object]:
    """A classifier of texts that are padded on the left."""
    from transformers import BioGptConfig, BioGptForSequenceClassification

    set_seed(0)
    small = BioGptConfig(vocab_size=203, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_labels=2,
                         intermediate_size=64, max_position_embeddings=64, hidden_dropout_prob=0.0, layerdrop=0.0,
                         attention_probs_dropout_prob=0.0, activation_dropout=0.0, pad_token_id=0)  # fmt: skip
    words, seen = tokenizer(), Course()
    words.padding_side = "left"
    words.model_input_names = ["input_ids", "attention_mask"]
    rows = texts().map(lambda row, at: {"input_ids": words(row["text"])["input_ids"], "labels": at % 2},
                       with_indices=True, remove_columns=["text"])  # fmt: skip
    Trainer(model=BioGptForSequenceClassification(small), args=TrainingArguments(**common(folder)), train_dataset=rows,
            data_collator=DataCollatorWithPadding(words), callbacks=callbacks(seen)).train()  # fmt: skip
    return seen.told(folder)


def whole_words(folder: str, **given: object) -> dict[str, object]:
    """A masked language model, of which whole words are masked."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast, DataCollatorForWholeWordMask

    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{one}" for one in letters)]
    place = Path(folder) / "vocab.txt"
    place.write_text("\n".join(pieces) + "\n")
    words, draw, seen = BertTokenizerFast(str(place)), random.Random(0), Course()
    lines = [" ".join("".join(draw.choices(letters, k=3)) for _ in range(8)) for _ in range(64)]
    rows = Dataset.from_list([{"input_ids": words(one)["input_ids"]} for one in lines])
    set_seed(0)
    small = BertConfig(vocab_size=len(pieces), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                       intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
    Trainer(model=BertForMaskedLM(small), args=TrainingArguments(**common(folder)), train_dataset=rows,
            data_collator=DataCollatorForWholeWordMask(words, **given), callbacks=callbacks(seen)).train()  # fmt: skip
    return seen.told(folder)


def steered(folder: str, adapted: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """An adapter trained by an optimizer of its own."""
    import later

    later.Trainer = lambda **given: Trainer(**given, optimizers=(optimizer, None))
    trainer, seen = language(folder, adapted)
    trainer.train()
    return seen.told(folder)


def loraplus(folder: str) -> dict[str, object]:
    from peft import LoraConfig, get_peft_model
    from peft.optimizers import create_loraplus_optimizer

    adapted = get_peft_model(model(), LoraConfig(r=4, target_modules=["q_proj", "embed_tokens"], task_type="CAUSAL_LM"))
    optimizer = create_loraplus_optimizer(model=adapted, optimizer_cls=torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=16,
                                          loraplus_lr_embedding=1e-6)  # fmt: skip
    return steered(folder, adapted, optimizer)


def lorafa(folder: str) -> dict[str, object]:
    """Half of the layers have another rank."""
    from peft import LoraConfig, get_peft_model
    from peft.optimizers import create_lorafa_optimizer

    adapted = get_peft_model(
        model(), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], rank_pattern={"v_proj": 32},
                            task_type="CAUSAL_LM")
    )  # fmt: skip
    return steered(folder, adapted, create_lorafa_optimizer(model=adapted, r=4, lora_alpha=8, lr=0.1))


def half_adapter(folder: str) -> dict[str, object]:
    """An adapter of a model in bfloat16."""
    from peft import get_peft_model

    return plain(folder, get_peft_model(model().to(torch.bfloat16), lora(True)))


def regex_embedding(folder: str) -> dict[str, object]:
    """An adapter of the embedding, named by a pattern, saved."""
    from peft import LoraConfig, get_peft_model

    wanted = LoraConfig(r=4, target_modules=r".*(embed_\w+|q_proj)$", task_type="CAUSAL_LM")
    trainer, seen = language(folder, get_peft_model(kept(folder), wanted))
    trainer.train()
    trainer.model.save_pretrained(str(Path(folder) / "saved"))
    return seen.told(folder)


def expert_layers(folder: str) -> dict[str, object]:
    """An adapter of the experts of one layer."""
    from peft import LoraConfig, get_peft_model

    wanted = LoraConfig(r=4, target_modules=["w1"], layers_to_transform=[1], task_type="CAUSAL_LM")
    return plain(folder, get_peft_model(experts(), wanted))


def contiguous(folder: str) -> dict[str, object]:
    """The first half of the rows."""
    import later

    later.texts = lambda: texts(128).shard(num_shards=2, index=0)
    return trained(folder, model())


def backend(folder: str) -> dict[str, object]:
    """What does a saved tokenizer say that it is?"""
    found = template(folder)
    saved = json.loads((Path(folder) / "saved" / "tokenizer_config.json").read_text())
    return {**found, "class": saved.get("tokenizer_class")}


def reports(folder: str) -> dict[str, object]:
    """Where are values logged to, if nobody says where?"""
    import later

    later.common = lambda folder, **given: {
        key: value for key, value in common(folder, **given).items() if key != "report_to"
    }
    trainer, seen = language(folder, model())
    trainer.train()
    return seen.told(folder, reports=[one for one in trainer.args.report_to if one != "none"])


def leak(folder: str) -> dict[str, object]:
    """Several trainings, one after the other, each with rows of its own."""
    import resource

    class Rows(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.rows, self.held = [[3 + at % 7, 5, 6] for at in range(32)], torch.ones(16 * 2**20)

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, at: int) -> dict[str, list[int]]:
            return {"input_ids": self.rows[at], "labels": self.rows[at]}

    seen, peaks = Course(), []
    for _ in range(6):
        Trainer(model=model(), args=TrainingArguments(**common(folder)), train_dataset=Rows(),
                callbacks=callbacks(seen)).train()  # fmt: skip
        gc.collect()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    return seen.told(folder, peaks=peaks)


def negated(folder: str) -> dict[str, object]:
    """An adapter that was trained and is then taken back, saved."""
    from peft import get_peft_model

    tuned = get_peft_model(kept(folder), lora(True))
    trainer, seen = language(folder, tuned)
    trainer.train()
    tuned.add_weighted_adapter(["default"], [-1.0], "negated", combination_type="linear")
    tuned.save_pretrained(str(Path(folder) / "saved"), selected_adapters=["negated"])
    words = tokenizer()("w1 w2 w3 w4", return_tensors="pt")["input_ids"]
    tuned.set_adapter("negated")
    with torch.no_grad():
        return seen.told(folder, scores=tuned(input_ids=words).logits[0, -1, :8].tolist())


def merged(folder: str) -> dict[str, object]:
    """An adapter of a model in bfloat16, merged into it, saved."""
    from peft import get_peft_model

    base = kept(folder).to(torch.bfloat16)
    trainer, seen = language(folder, get_peft_model(base, lora(True)), learning_rate=0.02)
    trainer.train()
    trainer.model.merge_and_unload(safe_merge=True).save_pretrained(str(Path(folder) / "saved"))
    return seen.told(folder)


class Convolved(torch.nn.Module):
    """Words, looked at through a window of three."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(203, 32)
        self.window = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.head = torch.nn.Linear(4 * 32, 203)
        torch.nn.init.constant_(self.window.bias, 0.5)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **named: object) -> dict:
        seen = torch.tanh(self.window(self.words(input_ids)[:, None])).permute(0, 2, 1, 3).flatten(2)
        logits = self.head(seen)
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def unmerged(folder: str) -> dict[str, object]:
    """Learned factors of a window with a bias, merged and unmerged again, as for an evaluation; then it is saved."""
    from peft import IA3Config, get_peft_model
    from safetensors.torch import save_file

    set_seed(0)
    factors = IA3Config(target_modules=["window"], feedforward_modules=[])
    trainer, seen = language(folder, get_peft_model(Convolved(), factors))
    trainer.train()
    trainer.model.base_model.merge_adapter()
    trainer.model.base_model.unmerge_adapter()
    held = trainer.model.base_model.model.window.base_layer
    save_file(dict(held.state_dict()), Path(folder) / "window.safetensors")
    return seen.told(folder, bias=float(held.bias.mean()))


def neftune(folder: str) -> dict[str, object]:
    return trained(folder, model(), neftune_noise_alpha=5.0)


def adapted(folder: str) -> dict[str, object]:
    from peft import get_peft_model

    return trained(folder, get_peft_model(model(), lora(True)))


def preferred(folder: str) -> dict[str, object]:
    """KTO as of late."""
    try:
        from trl import KTOConfig, KTOTrainer
    except ImportError:
        from trl.experimental.kto import KTOConfig, KTOTrainer

    seen = Course()
    args = KTOConfig(**common(folder, bf16=False, max_length=32, gradient_checkpointing=False))
    trainer = KTOTrainer(model=model(), ref_model=model(), args=args, processing_class=tokenizer(),
                         train_dataset=labelled(), callbacks=callbacks(seen))  # fmt: skip
    return finish(trainer, seen)


def with_(kind: Callable[..., dict[str, object]], **given: object) -> Callable[[str], dict[str, object]]:
    return lambda folder: kind(folder, **given)


SHORT = {"max_completion_length": 8, "temperature": 1.0}
KINDS = {
    "double-eos": double_eos,
    "twice-aux": twice_aux,
    "pad-is-eos": pad_is_eos,
    "group-reference": with_(group, **SHORT, top_k=203, learning_rate=1e-2, max_steps=8),
    "group-top-k": with_(group, **SHORT, beta=0.04),
    "group-temperature": with_(group, max_completion_length=8, temperature=0.7),
    "group-truncated": with_(group, max_completion_length=4, temperature=1.0, mask_truncated_completions=True),
    "group-length": with_(group, max_steps=2),
    "reward-eos": with_(reward, bf16=False),
    "divergence": divergence,
    "distilled": distilled,
    "untied": untied,
    "inverse-layers": inverse_layers,
    "left-scores": left_scores,
    "whole-words": with_(whole_words, mask_replace_prob=0.5, random_replace_prob=0.5),
    "loraplus": loraplus,
    "lorafa": lorafa,
    "half-adapter": half_adapter,
    "regex-embedding": regex_embedding,
    "expert-layers": expert_layers,
    "contiguous": contiguous,
    "resumed-late": with_(resumed),
    "backend": backend,
    "reports": reports,
    "leak": leak,
    "negated": negated,
    "unmerged": unmerged,
    "merged": merged,
    "neftune": neftune,
    "adapted": adapted,
    "kto-lately": preferred,
}

if __name__ == "__main__":
    run(KINDS)
