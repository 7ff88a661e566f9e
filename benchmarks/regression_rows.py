"""The regressions that benchmarks/real_regressions.py tries: packages, releases, the training that shows each, and how
a script without this project tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from regression_shows import (
    Seen,
    costs,
    crashes,
    ends_or_differs,
    first_loss_otherwise,
    forgets_the_beginning,
    gradient_apart,
    gradient_times,
    later_loss,
    logged_apart,
    loss_apart,
    loss_times,
    other_argument,
    other_course,
    other_data,
    other_logged,
    other_weights,
    resumes_otherwise,
    same_start,
    saves_no_template,
    saves_otherwise,
    starves_a_worker,
    takes_memory,
    trains_fewer,
    trains_less,
)

OLD = {"trl": "0.13.0", "transformers": "4.47.1", "peft": "0.14.0", "accelerate": "1.2.1", "datasets": "3.2.0"}
OLDER = {"transformers": "4.45.2", "peft": "0.13.2", "accelerate": "1.0.1", "datasets": "3.0.2"}
OLDEST = {"transformers": "4.37.2", "peft": "0.8.2", "accelerate": "0.24.1", "datasets": "3.0.2"}
MIDDLE = {"transformers": "4.57.3", "peft": "0.17.1", "accelerate": "1.11.0", "datasets": "4.4.1"}
NEW = {"trl": "1.14.2", "transformers": "5.19.0", "peft": "0.21.2", "accelerate": "1.14.0", "datasets": "5.2.0"}
INNOCENT = {
    "tqdm": ("4.67.0", "4.67.1"),
    "regex": ("2025.11.3", "2026.1.15"),
    "psutil": ("7.1.3", "7.2.2"),
    "xxhash": ("3.5.0", "3.6.0"),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One regression: a set of packages, what moves (the culprit), the training that shows it, and how it is told."""

    name: str
    source: str
    base: Mapping[str, str]
    culprit: str
    good: str
    bad: str
    kind: str
    shows: Callable[[Seen, Seen], bool]
    innocents: Mapping[str, tuple[str, str]] = field(default_factory=lambda: INNOCENT)
    script: str = "train.py"


SEEN = (
    Row(name="loss-4-ln-2", source="transformers#35856, trl#2617", base=OLD, culprit="transformers", good="4.47.1",
        bad="4.48.1", kind="dpo-accumulation", shows=loss_times(3.9, 4.1)),
    Row(name="gradient-quarter", source="the releases of the row above", base=OLD, culprit="transformers",
        good="4.47.1", bad="4.48.0", kind="dpo-accumulation", shows=gradient_times(0.24, 0.26)),
    Row(name="kto-accumulation", source="trl#2617", base=OLD, culprit="transformers", good="4.47.1", bad="4.48.1",
        kind="kto-accumulation", shows=loss_times(3.5, 4.5)),
    Row(name="packing-tails", source="trl#5075", base=MIDDLE, culprit="trl", good="0.26.2", bad="0.27.0",
        kind="sft-packing", shows=other_data),
    Row(name="olora-save", source="peft#3290", base={**NEW, "peft": "0.21.2"}, culprit="peft", good="0.21.2",
        bad="0.19.1", kind="olora-save", shows=trains_less),
    Row(name="dpo-without-triton", source="found by canary ab", base=NEW, culprit="trl", good="1.14.2", bad="1.15.0",
        kind="dpo", shows=crashes("AttributeError")),
    Row(name="cpo-batch-samples", source="trl#2292", base={**OLD, "trl": "0.11.4", "transformers": "4.45.2"},
        culprit="transformers", good="4.45.2", bad="4.46.0", kind="cpo-accumulation",
        shows=crashes("'generator' object has no attribute 'generate'")),
    Row(name="orpo-accumulation", source="trl#2617", base=OLD, culprit="transformers", good="4.47.1", bad="4.48.1",
        kind="orpo-accumulation", shows=loss_times(3.5, 4.5)),
    Row(name="reward-gradient", source="trl#4104", base=OLD, culprit="transformers", good="4.47.1", bad="4.48.1",
        kind="reward-accumulation", shows=gradient_times(0.24, 0.26)),
    Row(name="defaults-flip", source="trl#3510, trl#3629",
        base={**OLD, "transformers": "4.53.3", "accelerate": "1.8.1", "peft": "0.16.0"}, culprit="trl",
        good="0.18.2", bad="0.19.1", kind="sft-defaults",
        shows=other_argument("bf16", "gradient_checkpointing", "learning_rate")),
    Row(name="kto-prompt-length", source="Soup#326", base=MIDDLE, culprit="trl", good="0.26.2", bad="0.27.0",
        kind="kto-prompt-length", shows=crashes("TypeError")),
    Row(name="orpo-prompt-length", source="Soup#326", base=MIDDLE, culprit="trl", good="0.26.2", bad="0.28.0",
        kind="orpo-prompt-length", shows=crashes("TypeError")),
    Row(name="dpo-prompt-length", source="Soup#326, ArXiv-RL#11", base=MIDDLE, culprit="trl", good="0.26.2",
        bad="0.29.0", kind="dpo-prompt-length", shows=crashes("TypeError")),
)  # fmt: skip
UNSEEN = tuple(
    Row(script="unseen.py", name=name, source=source, base=base, culprit=culprit, good=good, bad=bad, kind=kind,
        shows=shows)
    for name, source, base, (culprit, good, bad), kind, shows in (
        ("smoothing-accumulation", "transformers#46731", OLDER,
         ("transformers", "4.45.2", "4.46.3"), "smoothing-accumulation", gradient_apart(1.5)),
        ("byte-level-llama", "transformers#45488", {**MIDDLE, "peft": "0.18.1"},
         ("transformers", "4.57.3", "5.3.0"), "byte-level", other_data),
        ("saved-bf16", "sentence-transformers#3773", {**MIDDLE, "peft": "0.18.1"},
         ("transformers", "4.57.3", "5.3.0"), "saved-bf16", other_weights),
        ("cache-import", "trl#4820", {**MIDDLE, "peft": "0.17.1"}, ("transformers", "4.57.3", "5.3.0"), "adapted",
         crashes("ImportError")),
        ("warmup-ratio", "semantic-router#3940", {**NEW, "transformers": "5.14.1"},
         ("transformers", "5.14.1", "5.15.1"), "warmup-ratio", crashes("TypeError")),
        ("decay-groups", "transformers#35927", {**OLD, "transformers": "4.48.3", "peft": "0.14.0"},
         ("transformers", "4.48.3", "4.50.3"), "decay", later_loss),
        ("untrained-head", "peft#2642", {**OLD, "transformers": "4.51.3"}, ("peft", "0.14.0", "0.16.0"),
         "classifier", trains_fewer),
        ("prompt-tuning-attribute", "peft#2477", {**OLD, "transformers": "4.51.3"}, ("peft", "0.14.0", "0.15.1"),
         "classifier", crashes("AttributeError")),
        ("column", "datasets#7676, course#1181", {**MIDDLE, "datasets": "3.6.0"}, ("datasets", "3.6.0", "4.0.0"),
         "column", crashes("ValueError")),
        ("unscaled-rewards", "trl#3991", {**MIDDLE, "transformers": "4.55.4"}, ("trl", "0.21.0", "0.22.1"),
         "group-unscaled", gradient_apart(1.2)),
        ("last-token", "trl#2332", {**OLD, "transformers": "4.46.3"}, ("trl", "0.13.0", "0.12.2"), "dpo-pairs",
         gradient_apart(1.001)),
        ("cut-by-default", "trl#2587", OLD, ("trl", "0.13.0", "0.14.0"), "dpo-long", gradient_apart(1.001)),
        ("appended-eos", "trl#3091", {**OLD, "transformers": "4.50.3"}, ("trl", "0.15.2", "0.16.0"), "sft-text",
         other_data),
        ("own-labels", "trl#3589, fms-hf-tuning#600", {**OLD, "transformers": "4.52.4", "accelerate": "1.7.0"},
         ("trl", "0.16.1", "0.18.2"), "own-labels", loss_apart(1.001)),
    )
)  # fmt: skip
LATER = tuple(
    Row(script="later.py", name=name, source=source, base=base, culprit=culprit, good=good, bad=bad, kind=name,
        shows=shows)
    for name, source, base, (culprit, good, bad), shows in (
        ("epochs", "transformers#36297, #38837", OLDER, ("transformers", "4.45.2", "4.48.3"), same_start),
        ("decay", "transformers#35927", {**OLD, "transformers": "4.48.3"}, ("transformers", "4.48.3", "4.50.3"),
         later_loss),
        ("resumed", "transformers#40691", {**OLD, "transformers": "4.51.3", "accelerate": "1.6.0"},
         ("accelerate", "1.6.0", "1.7.0"), resumes_otherwise),
        ("adapter-head", "transformers#48595", {**MIDDLE, "peft": "0.18.1"}, ("transformers", "4.57.3", "5.3.0"),
         logged_apart("eval_loss", 1.001)),
        ("output-layer", "trl#1287", {**OLDER, "peft": "0.6.2"}, ("peft", "0.6.2", "0.7.1"), saves_otherwise),
        ("group-weighted", "trl#5352", MIDDLE, ("trl", "0.26.2", "0.29.0"), logged_apart("reward", 1.5)),
        ("added-tokens", "transformers#46315", {**MIDDLE, "peft": "0.18.1"}, ("transformers", "4.57.3", "5.3.0"),
         costs("prepared", 2)),
        ("one-column", "lerobot#2895", {**MIDDLE, "datasets": "4.0.0"}, ("datasets", "4.0.0", "4.4.1"),
         costs("step", 2)),
        ("wide", "trl#4013, trl#7066", {**MIDDLE, "transformers": "4.55.4"}, ("trl", "0.21.0", "0.22.1"),
         takes_memory(1.3)),
    )
)  # fmt: skip
WIDER = tuple(
    Row(script="wider.py", name=name, source=source, base=base, culprit=culprit, good=good, bad=bad, kind=name,
        shows=shows)
    for name, source, base, (culprit, good, bad), shows in (
        ("buffers", "transformers#48892, Bacformer#36", {**MIDDLE, "peft": "0.18.1"},
         ("transformers", "4.57.3", "5.3.0"), first_loss_otherwise),
        ("own-head", "transformers#48154", {**MIDDLE, "peft": "0.18.1"}, ("transformers", "4.57.3", "5.15.1"),
         first_loss_otherwise),
        ("answers", "trl#6105", {**MIDDLE, "trl": "0.24.0", "peft": "0.18.1"}, ("transformers", "4.57.3", "5.5.0"),
         first_loss_otherwise),
        ("long-answers", "trl#6588", MIDDLE, ("trl", "0.26.2", "0.29.0"), first_loss_otherwise),
        ("long-prompts", "unsloth#3971", MIDDLE, ("trl", "0.23.1", "0.24.0"), gradient_apart(1.001)),
        ("sampled", "trl#5783, transformers#42762",
         {**OLD, "trl": "0.16.1", "transformers": "4.49.0", "accelerate": "1.4.0"},
         ("transformers", "4.49.0", "4.50.3"), other_logged("reward")),
        ("logs", "trl#2445", {**OLD, "trl": "0.12.0", "transformers": "4.46.3"}, ("transformers", "4.46.3", "4.47.0"),
         crashes("TypeError")),
        ("quantized", "trl#3926, trl#4029", {**MIDDLE, "bitsandbytes": "0.49.0"}, ("trl", "0.19.1", "0.20.0"),
         trains_fewer),
        ("tokenized", "trl#2861", {**OLD, "transformers": "4.48.3"}, ("trl", "0.14.0", "0.15.0"), crashes("Error")),
        ("shuffled", "accelerate#2208", OLDEST, ("accelerate", "0.24.1", "0.25.0"), first_loss_otherwise),
        ("template", "text-generation-inference#3247", {**OLD, "transformers": "4.51.3", "accelerate": "1.6.0"},
         ("transformers", "4.51.3", "4.52.4"), saves_no_template),
        ("resized", "axolotl#2000, transformers#35357", OLDER, ("transformers", "4.45.2", "4.46.3"),
         first_loss_otherwise),
        ("unwrap", "instructlab#3456", {**OLD, "transformers": "4.51.3"}, ("transformers", "4.51.3", "4.52.4"),
         crashes("keep_torch_compile")),
        ("sampler", "rl-swarm#304, Tina#4", {**OLD, "trl": "0.16.1", "transformers": "4.51.3", "accelerate": "1.6.0"},
         ("transformers", "4.51.3", "4.52.4"), crashes("TypeError")),
    )
)  # fmt: skip
OWN = tuple(
    Row(script="own.py", name=name, source=source, base=base, culprit=culprit, good=good, bad=bad, kind=name,
        shows=shows)
    for name, source, base, (culprit, good, bad), shows in (
        ("answer-only", "trl#4880, Megatron-LM#4450", {**MIDDLE, "peft": "0.18.1"},
         ("transformers", "4.57.3", "5.3.0"), first_loss_otherwise),
        ("own-loss", "transformers#36331, closer-look-LLM-unlearning#1", OLDER, ("transformers", "4.45.2", "4.46.3"),
         crashes("num_items_in_batch")),
        ("half-loaded", "trl#4770, transformers#42805", {**MIDDLE, "peft": "0.18.1"},
         ("transformers", "4.57.3", "5.3.0"), lambda good, bad: good["type"] != bad["type"]),
    )
)  # fmt: skip
V5 = {**MIDDLE, "peft": "0.18.1"}
THREADS = tuple(
    Row(script="threads.py", name=name, source=source, base=base, culprit=culprit, good=good, bad=bad, kind=name,
        shows=shows)
    for name, source, base, (culprit, good, bad), shows in (
        ("reinitialized", "transformers#46620", V5, ("transformers", "4.57.3", "5.12.1"), first_loss_otherwise),
        ("shards", "datasets#8669", {**NEW, "datasets": "4.8.5"}, ("datasets", "4.8.5", "5.0.1"), starves_a_worker),
        ("framed", "transformers#44568", {**V5, "sentencepiece": "0.2.1", "protobuf": "6.33.0"},
         ("transformers", "4.57.3", "5.3.0"), other_data),
        ("list-texts", "trl#3583", {**OLD, "transformers": "4.52.4", "accelerate": "1.7.0"},
         ("trl", "0.15.2", "0.18.2"), ends_or_differs),
        ("torch-rows", "oumi#1478", {**OLD, "transformers": "4.48.3"}, ("trl", "0.14.0", "0.15.0"), crashes("Error")),
        ("settings", "instructlab#2803", {**OLD, "transformers": "4.46.3"}, ("trl", "0.12.2", "0.13.0"),
         crashes("TypeError")),
        ("held", "Soup#1009", {**NEW, "peft": "0.20.0"}, ("peft", "0.20.0", "0.21.0"), saves_otherwise),
        ("new-words", "peft#2863", {**MIDDLE, "peft": "0.15.2"}, ("peft", "0.15.2", "0.16.0"),
         crashes("embedding_dim")),
        ("erased", "transformers#48592", {**MIDDLE, "transformers": "4.55.4"}, ("transformers", "4.55.4", "4.56.2"),
         forgets_the_beginning),
        ("own-saver", "FlagEmbedding#1583", V5, ("transformers", "4.57.3", "5.9.0"), crashes("tokenizer")),
        ("renamed", "transformers#46650", V5, ("transformers", "4.57.3", "5.5.3"), saves_otherwise),
        ("split-otherwise", "mellea#947", V5, ("transformers", "4.57.3", "5.3.0"), first_loss_otherwise),
        ("group-accumulation", "trl#4172", {**MIDDLE, "transformers": "4.55.4"}, ("trl", "0.21.0", "0.22.2"),
         gradient_apart(1.001)),
    )
)  # fmt: skip
SILENT = tuple(
    Row(script="silent.py", name=name, source=source, base=base, culprit=culprit, good=good, bad=bad, kind=name,
        shows=shows)
    for name, source, base, (culprit, good, bad), shows in (
        ("double-eos", "trl#4908", MIDDLE, ("trl", "0.26.2", "0.28.0"), other_course),
        ("twice-aux", "trl#4078", MIDDLE, ("trl", "0.22.2", "0.23.0"), first_loss_otherwise),
        ("group-reference", "trl#3516", {**OLD, "transformers": "4.52.4", "accelerate": "1.7.0"},
         ("trl", "0.18.2", "0.19.1"),
         lambda good, bad: "kl" in good["logged"][0] and "kl" not in bad["logged"][0]),
        ("group-top-k", "trl#3494", {**OLD, "transformers": "4.52.4", "accelerate": "1.7.0"},
         ("trl", "0.17.0", "0.18.2"), other_course),
        ("group-temperature", "trl#3029", {**OLD, "transformers": "4.49.0", "accelerate": "1.4.0"},
         ("trl", "0.15.2", "0.16.1"), other_course),
        ("group-truncated", "trl#6439", NEW, ("trl", "1.8.0", "1.9.2"), other_course),
        ("group-length", "trl#6264", NEW, ("trl", "1.9.2", "1.10.0"), other_course),
        ("reward-eos", "trl#4093", MIDDLE, ("trl", "0.23.1", "0.24.0"), first_loss_otherwise),
        ("divergence", "trl#4171", MIDDLE, ("trl", "0.23.1", "0.24.0"), other_course),
        ("distilled", "trl#6357", NEW, ("trl", "1.8.0", "1.9.2"), first_loss_otherwise),
        ("pad-is-eos", "trl#3200", {**OLD, "transformers": "4.50.3"}, ("trl", "0.16.0", "0.17.0"),
         first_loss_otherwise),
        ("untied", "transformers#44931", V5, ("transformers", "4.57.3", "5.3.0"), first_loss_otherwise),
        ("inverse-layers", "transformers#44380", {**OLDER, "transformers": "4.43.4"},
         ("transformers", "4.43.4", "4.48.3"), first_loss_otherwise),
        ("left-scores", "transformers#46782", NEW, ("transformers", "5.12.1", "5.14.1"), first_loss_otherwise),
        ("whole-words", "transformers#36903", {**OLD, "transformers": "4.50.3"},
         ("transformers", "4.50.3", "4.51.3"), first_loss_otherwise),
        ("loraplus", "peft#3503", NEW, ("peft", "0.20.0", "0.21.2"), other_course),
        ("lorafa", "peft#3315", NEW, ("peft", "0.19.1", "0.20.0"), other_course),
        ("half-adapter", "peft#1706", OLDER, ("peft", "0.11.1", "0.12.0"),
         lambda good, bad: good["rows"] != bad["rows"]),
        ("regex-embedding", "peft#2649", MIDDLE, ("peft", "0.16.0", "0.17.0"), saves_otherwise),
        ("expert-layers", "peft#3318", MIDDLE, ("peft", "0.19.1", "0.20.0"),
         lambda good, bad: good["trainable"] != bad["trainable"]),
        ("contiguous", "datasets#7252", {**OLDER, "datasets": "3.0.2"}, ("datasets", "3.0.2", "3.2.0"),
         first_loss_otherwise),
        ("backend", "unsloth#8444, transformers#47553", V5, ("transformers", "4.57.3", "5.3.0"),
         lambda good, bad: good["class"] != bad["class"]),
        ("reports", "transformers#41375", V5, ("transformers", "4.57.3", "5.3.0"),
         lambda good, bad: bool(good["reports"]) and not bad["reports"]),
        ("negated", "peft#2796, peft#2918", MIDDLE, ("peft", "0.18.0", "0.19.1"),
         lambda good, bad: good["scores"] != bad["scores"]),
        ("unmerged", "peft#3216", MIDDLE, ("peft", "0.19.1", "0.20.0"),
         lambda good, bad: abs(good["bias"] - bad["bias"]) > 1e-5),
    )
)  # fmt: skip
ROWS = (*SEEN, *UNSEEN, *LATER, *WIDER, *OWN, *THREADS, *SILENT)
CONSECUTIVE = {
    "accelerate": ("whole-accumulation", "1.11.0 1.12.0 1.13.0 1.14.0 1.15.0"),
    "peft": ("whole-lora", "0.17.1 0.18.1 0.19.1 0.20.0 0.21.2"),
    "transformers": ("whole-accumulation", "5.15.1 5.16.1 5.17.0 5.18.0 5.19.0 5.20.2 5.21.1 5.22.2 5.23.0"),
    "trl": ("whole-accumulation", "1.6.0 1.7.1 1.8.0 1.9.2 1.10.0 1.11.0 1.12.0 1.13.0 1.14.2 1.15.0 1.16.0"),
}
"""The last patch of each minor release, beside the other packages of NEW; nothing else moves, so that a set is tried
once for both of its pairs."""
CLOSE = (
    ("erased", {**MIDDLE, "transformers": "4.55.3"}, "transformers", "4.55.3", "4.55.4"),
    ("renamed", {**V5, "transformers": "5.5.2"}, "transformers", "5.5.2", "5.5.3"),
    ("held", {**NEW, "peft": "0.19.1"}, "peft", "0.19.1", "0.20.0"),
    ("shards", {**NEW, "datasets": "4.8.4"}, "datasets", "4.8.4", "4.8.5"),
    ("group-accumulation", MIDDLE, "trl", "0.23.0", "0.23.1"),
)
"""Neighbours of the releases of THREADS, with the same trainings."""
CLOSE_SILENT = (
    ("double-eos", MIDDLE, "trl", "0.26.1", "0.26.2"),
    ("group-top-k", {**OLD, "transformers": "4.52.4", "accelerate": "1.7.0"}, "trl", "0.18.1", "0.18.2"),
    ("whole-words", MIDDLE, "transformers", "4.56.1", "4.56.2"),
    ("loraplus", NEW, "peft", "0.21.1", "0.21.2"),
    ("contiguous", OLDER, "datasets", "3.0.1", "3.0.2"),
    ("resumed-late", MIDDLE, "accelerate", "1.10.0", "1.10.1"),
    ("untied", MIDDLE, "tokenizers", "0.22.0", "0.22.1"),
    ("neftune", V5, "transformers", "5.1.0", "5.2.0"),
    ("adapted", {**NEW, "peft": "0.19.1"}, "peft", "0.19.1", "0.20.0"),
    ("kto-lately", NEW, "trl", "1.4.0", "1.5.1"),
)
"""As CLOSE, for SILENT; in the last three much of the code was written anew, and is to compute the same."""
CLOSE_OTHERS = (
    ("backend", {**V5, "transformers": "5.3.0"}, "tokenizers", "0.22.1", "0.22.2"),
    ("unmerged", MIDDLE, "safetensors", "0.6.2", "0.7.0"),
    ("regex-embedding", NEW, "huggingface-hub", "1.31.0", "1.33.0"),
    ("half-adapter", {**OLD, "transformers": "4.51.3"}, "accelerate", "1.5.1", "1.5.2"),
    ("group-length", {**NEW, "trl": "1.10.0"}, "numpy", "2.4.4", "2.4.6"),
    ("contiguous", MIDDLE, "datasets", "4.4.1", "4.4.2"),
    ("reports", MIDDLE, "transformers", "4.57.1", "4.57.3"),
    ("negated", MIDDLE, "peft", "0.18.0", "0.18.1"),
    ("reward-eos", MIDDLE, "trl", "0.29.0", "0.29.1"),
    ("backend", NEW, "transformers", "5.12.0", "5.12.1"),
    ("merged", {**OLD, "transformers": "4.51.3"}, "peft", "0.14.0", "0.16.0"),
)
"""As CLOSE_SILENT, with trainings for what is saved and where values are sent; mostly what others rest on moves."""
CLOSE_WIDER = (("answers", NEW, "trl", "1.7.1", "1.8.0"),)
"""As CLOSE: trl 1.8 says with labels what it said with a mask."""
HARMLESS = (
    Row(name="transformers-4.57.3-5.0.0", source="consecutive releases", base={**MIDDLE, "peft": "0.18.1"},
        culprit="transformers", good="4.57.3", bad="5.0.0", kind="template", shows=lambda good, bad: True, innocents={},
        script="wider.py"),
    *(Row(name=f"{package}-{good}-{bad}", source="consecutive releases", base=NEW, culprit=package, good=good, bad=bad,
          kind=kind, shows=lambda good, bad: True, innocents={})
      for package, (kind, versions) in CONSECUTIVE.items() for good, bad in pairwise(versions.split())),
    *(Row(name=f"{kind}-{good}-{bad}", source="close releases", base=base, culprit=package, good=good, bad=bad,
          kind=kind, shows=lambda good, bad: True, script=script)
      for script, rows in (("threads.py", CLOSE), ("silent.py", CLOSE_SILENT + CLOSE_OTHERS), ("wider.py", CLOSE_WIDER))
      for kind, base, package, good, bad in rows),
)  # fmt: skip
