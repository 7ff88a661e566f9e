"""The memory that `canary plan` says a configuration needs, compared with the measured peak of its run on a GPU.

    python benchmarks/memory_on_card.py [--rows NAME …] [--folder PLACE]

Each row trains three steps in a fresh process, on rows that fill train.max_length. The models have the shapes of
Qwen2.5-0.5B and of a Llama with 7 billion weights, and random weights, which are written into the folder first (13 GB
for the large one). Planned: without the states of a paged optimizer, which are managed memory. Measured: what torch's
allocator gave out at most (`max_memory_allocated`), what it took from the card (`max_memory_reserved`), and what the
driver counts beside that: CUDA's context and workspaces. A row that the plan says cannot fit is left out. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from memory_plan import MIB, make_data  # noqa: E402

SMALL, LARGE = "qwen2-0.5b", "llama-7b"
SIZES: dict[str, dict[str, Any]] = {
    SMALL: {
        "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    LARGE: {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "intermediate_size": 11008, "vocab_size": 32000,
    },
}  # fmt: skip
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sft": (SMALL, ("algo=sft",)),
    "sft-saving": (SMALL, ("algo=sft", "memory=saving")),
    "sft-lora": (SMALL, ("algo=sft", "adapter=lora")),
    "sft-nf4": (SMALL, ("algo=sft", "adapter=lora", "quantization=nf4")),
    "dpo": (SMALL, ("algo=dpo",)),
    "kto": (SMALL, ("algo=kto",)),
    "reward": (SMALL, ("algo=reward",)),
    "ppo": (SMALL, ("algo=ppo",)),
    "grpo": (SMALL, ("algo=grpo",)),
    "7b-sft-lora": (LARGE, ("algo=sft", "adapter=lora")),
    "7b-dpo-lora": (LARGE, ("algo=dpo", "adapter=lora", "memory.gradient_checkpointing=true")),
    "7b-sft-nf4": (LARGE, ("algo=sft", "adapter=lora", "quantization=nf4")),
    "7b-sft-saving": (LARGE, ("algo=sft", "memory=saving")),
    "7b-sft-full": (LARGE, ("algo=sft", "memory.gradient_checkpointing=true")),
}


def make_model(shape: dict[str, Any], folder: Path, device: str = "cuda") -> None:
    """Write a model of this shape with random weights, made on the GPU, and the embedded model's tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from canary_mlflow.training.assets.tiny import tiny_model_folder
    from canary_mlflow.training.loading import load_tokenizer

    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "max_position_embeddings": 2048}
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape, **special), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    load_tokenizer(tiny_model_folder()).save_pretrained(folder)


def words_of(row: str, folder: Path) -> list[str]:
    """The command line of a row."""
    size, words = ROWS[row]
    return [
        "model=local", f"model.path={folder}/{size}", "data=jsonl", f"data.path={folder}/data.jsonl", "hardware=cuda",
        "tier.train_rows=32", "tier.eval_rows=8", "train.max_steps=3", *words,
    ]  # fmt: skip


def measure(words: list[str]) -> dict[str, float]:
    """Peaks, in MiB, of three steps of training in this process."""
    import torch
    from transformers import TrainerCallback

    from canary_mlflow.tracking.describing import gpus
    from canary_mlflow.training import algorithms
    from canary_mlflow.training.command_line import expand, parse
    from canary_mlflow.training.compose import check, register_schemas
    from canary_mlflow.training.devices import settle
    from canary_mlflow.training.parts import build_parts
    from canary_mlflow.training.worker import load

    def used() -> float:
        """Of this process if the driver tells it, else of the card."""
        with gpus.driver() as nvml:
            card = gpus.handle(nvml, gpus.visible(nvml)[0])
            known = {one.pid: one.usedGpuMemory for one in nvml.nvmlDeviceGetComputeRunningProcesses(card)}
            return float(known.get(os.getpid()) or nvml.nvmlDeviceGetMemoryInfo(card).used) / MIB

    class Largest(TrainerCallback):  # type: ignore[misc]
        taken = 0.0

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.taken = max(self.taken, used() - torch.cuda.memory_reserved() / MIB)

    register_schemas()
    (config,) = check(parse(expand(words)))
    load(config.algo.name)
    largest = Largest()
    device = settle(config.hardware)
    with tempfile.TemporaryDirectory() as place:
        trainer = algorithms.build(config, build_parts(config, device), device, Path(place), [])
        trainer.add_callback(largest)
        trainer.train()
    return {
        "allocated": torch.cuda.max_memory_allocated() / MIB,
        "reserved": torch.cuda.max_memory_reserved() / MIB,
        "beside": largest.taken,
    }


def compare(row: str, folder: Path) -> dict[str, Any] | None:
    """The planned and the measured figures, each from a fresh process. None if the plan says that it cannot fit."""
    words = words_of(row, folder)
    planned = run(["-m", "canary_mlflow.training.planning", "--json", *words])
    if planned.returncode == 2 and "expected a run that fits" in planned.stderr:
        return None
    plan = json.loads(planned.stdout[planned.stdout.index("{") :])
    managed = plan["optimizer"] if "memory=saving" in words else 0
    done = run([__file__, "--measure", *words])
    if done.returncode:
        return {
            "name": row,
            "failed": done.stderr.strip().splitlines()[-1],
            "planned": (plan["counted"] - managed) / MIB,
        }
    return {
        "name": row,
        "millions": plan["parameters"] / 1e6,
        "planned": (plan["counted"] - managed) / MIB,
        "estimated_beside": (plan["total"] - plan["counted"]) / MIB,
        **json.loads(done.stdout.splitlines()[-1]),
    }


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """This Python with these words, in the checkout."""
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def table(found: list[dict[str, Any]]) -> str:
    """The rows for the docs."""
    lines = [
        "| run | million weights | planned, MiB | allocated, MiB | planned / allocated | reserved, MiB | beside, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        if "failed" in one:
            lines.append(f"| {one['name']} | | {one['planned']:.0f} | {one['failed'][:80]} | | | |")
            continue
        ratio = one["planned"] / one["allocated"]
        lines.append(
            f"| {one['name']} | {one['millions']:.0f} | {one['planned']:.0f} | {one['allocated']:.0f} | {ratio:.2f} | "
            f"{one['reserved']:.0f} | {one['beside']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--folder", type=Path, help="where the models are made and kept; else they are deleted")
    parser.add_argument("--make", choices=SIZES)
    parser.add_argument("--measure", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measure(asked.measure)))
        return
    if asked.make:
        make_model(SIZES[asked.make], asked.folder / asked.make)
        return
    found, left = [], []
    with tempfile.TemporaryDirectory() as place:
        folder = (asked.folder or Path(place)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        make_data(folder / "data.jsonl")
        for row in asked.rows:
            size = ROWS[row][0]
            if not (folder / size / "config.json").is_file():
                subprocess.run([sys.executable, __file__, "--make", size, "--folder", str(folder)], check=True)
            one = compare(row, folder)
            print(json.dumps(one or {"name": row, "left out": "the plan says that it cannot fit"}), flush=True)
            found += [one] if one else []
            left += [] if one else [row]
    print(table(found))
    print(json.dumps({"benchmark": "memory_on_card", "rows": found, "cannot_fit": left}))


if __name__ == "__main__":
    main()
