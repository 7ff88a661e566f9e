"""Where the units of on_card.py work, how much they measure, and the models that they train."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from memory_on_card import SIZES, SMALL, make_model
from memory_plan import make_data
from root_cause import kept

from canary_mlflow.gates import Run

if TYPE_CHECKING:
    from on_card import Book

REHEARSED = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 512,
}
"""Of the shapes, in a rehearsal."""
SPOKEN = "qwen2-0.5b-spoken"
SHAPES = SIZES | {SPOKEN: SIZES[SMALL] | {"vocab_size": 512}}
"""`SPOKEN` has a canary's vocabulary: random weights hardly ever draw one of its tokens among Qwen2's 151,936, and only
those earn a reward."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured. `tiny`: two layers instead of the real shapes, on a CPU."""

    hardware: str
    tiny: bool
    steps: int
    policy_steps: int
    policy_runs: tuple[int, int, int]  # of a champion, an unchanged candidate and one that is broken
    learning_rate: float  # at which random weights learn something in so few steps
    batch: int
    answers: int  # of a policy's batch
    length: int
    runs: int  # of a side
    splits: int
    rounds: int
    sessions: int  # per algorithm
    algos: tuple[str, ...]
    slower: tuple[float, ...]  # shares of a step
    session_words: tuple[str, ...] = ()


FULL = Size(
    hardware="cuda", tiny=False, steps=40, policy_steps=30, policy_runs=(4, 4, 2), learning_rate=1e-4, batch=8,
    answers=32, length=512, runs=6, splits=20, rounds=5, sessions=5, algos=("sft", "dpo"), slower=(0.05, 0.1, 0.2),
)  # fmt: skip
TINY = Size(
    hardware="cpu", tiny=True, steps=8, policy_steps=4, policy_runs=(2, 1, 1), learning_rate=1e-2, batch=2,
    answers=8, length=32, runs=2, splits=2, rounds=1, sessions=1, algos=("sft",), slower=(0.2,),
    session_words=("repeats=2", "train.max_steps=8", "gate.min_steps=2", "gate.warmup_steps=1"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Where units work. `folder`: models, stores, scratch files."""

    folder: Path
    size: Size
    book: Book

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder}/mlflow.db"

    def model(self, shape: str) -> Path:
        """A model of that shape with random weights, and rows that fill each example; made when first asked for."""
        folder = self.folder / shape
        if not (folder / "config.json").exists():
            make_model(SHAPES[shape] | (REHEARSED if self.size.tiny else {}), folder, self.size.hardware)
        if not (data := self.folder / "data.jsonl").exists():
            make_data(data)
        return folder

    def words(self, shape: str, *words: str) -> list[str]:
        """The command line of a training of that shape."""
        size = self.size
        return [
            "model=local", f"model.path={self.model(shape)}", "data=jsonl", f"data.path={self.folder}/data.jsonl",
            f"hardware={size.hardware}", f"train.batch_size={size.batch}", f"train.max_length={size.length}",
            "tier.train_rows=48", "tier.eval_rows=16", f"train.max_steps={size.steps}", *words,
        ]  # fmt: skip

    def runs(self, part: str, *names: str) -> list[Run]:
        """The recorded runs of these units. Raises LookupError where one is not there."""
        held = self.book.of(part)
        return [replace(kept(0, held[name]["run"]), run_id=name) for name in names]

    @property
    def rate(self) -> str:
        """The learning rate, as a word of a command line."""
        return f"train.learning_rate={self.size.learning_rate}"

    @property
    def adapter_rate(self) -> str:
        """LoRA's, ten times as high: at the usual rate it learns nothing in so few steps."""
        return f"train.learning_rate={10 * self.size.learning_rate}"


def make_up_a_driver() -> None:
    """For a rehearsal: what tests make up where there is no card."""
    from fake_gpu import Driver

    sys.modules["pynvml"] = Driver()  # type: ignore[assignment]


def loads_early(rehearse: bool) -> bool:
    """Whether the libraries can be loaded before the forks. PEFT imports bitsandbytes, and that asks each card for its
    capability: a process that is forked after it cannot use CUDA. Then each unit loads them."""
    return rehearse or find_spec("bitsandbytes") is None


def load() -> None:
    """Load the libraries of all trainings. Before the forks it must not touch a card."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # else the question alone makes a context
    from canary_mlflow.training import worker
    from canary_mlflow.training.compose import register_schemas

    for algo in ("sft", "dpo", "ppo", "grpo"):
        worker.load(algo)
    register_schemas()
    gc.collect()
    gc.freeze()
