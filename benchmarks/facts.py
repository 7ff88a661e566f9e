"""What exact facts cost a run: CPU milliseconds of each group, of the first step, of the tags, and of the drift per
layer, beside its training.

python benchmarks/facts.py [--rows 20000]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "tests")]


def timed(spent: dict[str, float], name: str, act: Any) -> Any:
    """The same function, which adds its CPU time to `spent`."""

    def measured(*given: Any) -> Any:
        began = time.process_time()
        try:
            return act(*given)
        finally:
            spent[name] = spent.get(name, 0.0) + 1000 * (time.process_time() - began)

    return measured


def main() -> None:
    """Measure every part in a run of a user's own script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=80)
    rows = parser.parse_args().rows
    import tiny_trainers

    from canary_mlflow import CanaryCallback
    from canary_mlflow.tracking.probes import facts
    from canary_mlflow.tracking.probes.parameters import LayerDrift

    tiny_trainers.LINES = (tiny_trainers.LINES * (rows // len(tiny_trainers.LINES) + 1))[:rows]
    spent: dict[str, float] = {}
    facts.GROUPS = {name: timed(spent, name, find) for name, find in facts.GROUPS.items()}
    facts.ExactFacts.step_ended = timed(spent, "first step", facts.ExactFacts.step_ended)  # type: ignore[method-assign]
    facts.ExactFacts.tags = timed(spent, "tags", facts.ExactFacts.tags)  # type: ignore[method-assign]
    for event in ("start", "stop"):
        setattr(LayerDrift, event, timed(spent, f"drift, {event}", getattr(LayerDrift, event)))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        trainer = tiny_trainers.sft(tiny_trainers.save_tiny(folder), Path(folder), [CanaryCallback()], max_steps=100)
        began = time.process_time()
        trainer.train()
        run = 1000 * (time.process_time() - began)
    for name, milliseconds in spent.items():
        print(f"{name:<12} {milliseconds:8.2f} ms")
    total = sum(spent.values())
    print(f"{'all':<12} {total:8.2f} ms of {run:.0f} ms CPU that the training of 100 steps took: {total / run:.2%}")
    print(json.dumps({"rows": rows, "facts_ms": round(total, 2), "run_ms": round(run), "share": total / run}))


if __name__ == "__main__":
    main()
