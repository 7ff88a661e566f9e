"""The memory that `canary plan` says a configuration needs, compared with the measured peak of its run on a CPU.

    python benchmarks/memory_plan.py [--rows NAME …] [--write]

Each row is a model of another size (GPT-NeoX's architecture, random weights), trained for three steps in a fresh
process on rows that fill train.max_length. Measured: the largest resident set after the libraries are loaded, less its
size at that moment. *In use*: with a malloc that returns freed blocks to the system at once, which is what the plan
counts. *As glibc keeps it*: as runs are made; glibc keeps some freed blocks for later. Nothing in the plan is fitted to
these rows. `--write` puts the table into docs/measured/gpu.md. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PAGE = ROOT / "docs" / "measured" / "gpu.md"
BEGIN, END = "<!-- memory plan -->", "<!-- end of memory plan -->"
MIB = 2**20
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "131072"}  # bytes; set, it no longer grows with what is freed (mallopt(3))


@dataclass(frozen=True, kw_only=True)
class Row:
    """A configuration: the model's width, layers and vocabulary, and further words for the command line."""

    name: str
    width: int
    layers: int
    vocabulary: int
    words: tuple[str, ...]


ROWS = (
    Row(name="sft-small", width=256, layers=4, vocabulary=4096, words=("algo=sft",)),
    Row(name="sft-large", width=512, layers=8, vocabulary=16384, words=("algo=sft",)),
    Row(name="sft", width=640, layers=6, vocabulary=8192, words=("algo=sft",)),
    Row(name="sft-long", width=384, layers=6, vocabulary=32768, words=("algo=sft", "train.max_length=512")),
    Row(name="sft-saved", width=512, layers=8, vocabulary=8192,
        words=("algo=sft", "memory.gradient_checkpointing=true")),
    Row(name="sft-lora", width=768, layers=8, vocabulary=8192, words=("algo=sft", "adapter=lora")),
    Row(name="dpo", width=512, layers=6, vocabulary=8192, words=("algo=dpo",)),
    Row(name="kto", width=512, layers=6, vocabulary=8192, words=("algo=kto",)),
    Row(name="reward", width=640, layers=8, vocabulary=8192, words=("algo=reward",)),
    Row(name="ppo", width=512, layers=8, vocabulary=16384, words=("algo=ppo",)),
    Row(name="grpo", width=512, layers=8, vocabulary=16384, words=("algo=grpo",)),
)  # fmt: skip


def make_model(row: Row, folder: Path) -> None:
    """Write the row's model, with the embedded model's tokenizer."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    from canary_mlflow.training.assets.tiny import tiny_model_folder
    from canary_mlflow.training.loading import load_tokenizer

    tokenizer = load_tokenizer(tiny_model_folder())
    config = GPTNeoXConfig(
        hidden_size=row.width,
        num_hidden_layers=row.layers,
        num_attention_heads=8,
        intermediate_size=4 * row.width,
        max_position_embeddings=512,
        vocab_size=row.vocabulary,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
        dtype="float32",
    )
    GPTNeoXForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_data(path: Path) -> None:
    """Write pairs whose answers are longer than any row may be."""
    from canary_mlflow.training.assets import sentences

    text = " ".join(sentences.ADVICE * 40)
    rows = [
        {"prompt": f"Question {index}: how?", "chosen": f" yes {text}", "rejected": f" no {text}"}
        for index in range(64)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))


def words_of(row: Row, folder: Path) -> list[str]:
    """The command line of a row."""
    return [
        "model=local", f"model.path={folder}/model", "data=jsonl", f"data.path={folder}/data.jsonl", "hardware=cpu",
        "tier.train_rows=32", "tier.eval_rows=8", "train.max_steps=3", *row.words,
    ]  # fmt: skip


def measure(folder: Path, words: list[str]) -> float:
    """MiB that three steps of training added to this process, once the libraries were loaded."""
    import gc

    from canary_mlflow.training import algorithms
    from canary_mlflow.training.command_line import expand, parse
    from canary_mlflow.training.compose import check, register_schemas
    from canary_mlflow.training.devices import settle
    from canary_mlflow.training.parts import build_parts
    from canary_mlflow.training.worker import load

    register_schemas()
    (config,) = check(parse(expand(words)))
    load(config.algo.name)
    device = settle(config.hardware)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    trainer = algorithms.build(config, build_parts(config, device), device, folder / "trainer", [])
    trainer.train()
    return (status("VmHWM") - before) / 1024


def status(key: str) -> int:
    """An entry of /proc/self/status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{key}:")))


def compare(row: Row) -> dict[str, Any]:
    """The planned and the two measured figures, each from a fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        words = words_of(row, folder)
        run([sys.executable, __file__, "--make", row.name, place], environment)
        command = [sys.executable, __file__, "--measure", place, *words]
        in_use, kept = (float(run(command, environment | extra).split()[-1]) for extra in (RETURNED, {}))
        found = run([sys.executable, "-m", "canary_mlflow.training.planning", "--json", *words], environment)
        plan = json.loads(found[found.index("{") :])
    millions, planned = plan["parameters"] / 1e6, plan["total"] / MIB
    return {"name": row.name, "millions": millions, "planned": planned, "in_use": in_use, "kept": kept}


def run(command: list[str], environment: dict[str, str]) -> str:
    """The command's standard output. Exits with its error if it fails."""
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} …: {done.stderr[-2000:]}")
    return done.stdout


def table(found: list[dict[str, Any]]) -> str:
    """The rows for the docs."""
    lines = [
        "| run | million weights | planned, MiB | in use, MiB | planned / in use | as glibc keeps it, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        numbers = f"{one['millions']:.1f} | {one['planned']:.0f} | {one['in_use']:.0f}"
        lines.append(f"| {one['name']} | {numbers} | {one['planned'] / one['in_use']:.2f} | {one['kept']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="*", default=[row.name for row in ROWS])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--make", nargs=2)
    parser.add_argument("--measure", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if asked.make:
        name, place = asked.make
        make_model(next(row for row in ROWS if row.name == name), Path(place) / "model")
        make_data(Path(place) / "data.jsonl")
        return
    if asked.measure:
        place, *words = asked.measure
        print(measure(Path(place), words))
        return
    found = []
    for row in ROWS:
        if row.name in asked.rows:
            found.append(compare(row))
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    print(table(found))
    if asked.write:
        text = PAGE.read_text()
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}")
    off = [abs(one["planned"] / one["in_use"] - 1) for one in found]
    print(json.dumps({"rows": found, "worst": max(off, default=None)}))


if __name__ == "__main__":
    main()
