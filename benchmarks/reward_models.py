"""What `canary check-reward` says of good and of bad reward models, each a folder, on the embedded pairs.

    python benchmarks/reward_models.py [--seeds 6] [--untrained 40] [--folder FOLDER]

Good ones, and those from swapped and from half-swapped pairs, are trained by `algo=reward` of the smoke tier, one for
each seed. Random heads are drawn as Transformers draws them, and saved: on the embedded model, which was never trained,
and on the good ones; other architectures are drawn whole. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import reward_folders  # noqa: E402  # the path is set above

from canary_mlflow.training import reward_checks  # noqa: E402

FAULT = "fault=flipped_labels"
TRAINED: dict[str, tuple[str, ...]] = {
    "good": (),
    "swapped pairs": (FAULT, "fault.strength=1.0"),
    "half of the pairs swapped": (FAULT, "fault.strength=0.5"),
}
SAYS = {
    "no better": "no better than chance",
    "reversed": "as if the preferences were reversed",
    "head": "its head is not trained for this",
    "constant": "every text has the same score",
}


def trained(folder: Path, seed: int, words: tuple[str, ...]) -> str:
    """The folder of what one run of the reward canary saved."""
    folder.mkdir(parents=True)
    own = ("algo=reward", f"seed={seed}", "repeats=1", "hardware=cpu", "tracking.uri=sqlite:///mlflow.db", *words)
    command = [sys.executable, "-m", "training", *own]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    found = sorted(folder.glob("mlruns/**/model.safetensors"))
    if not found:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode} and saved nothing: {done.stderr[-500:]}")
    return str(found[0].parent)


def models(folder: Path, seeds: int, untrained: int) -> Iterator[tuple[str, str]]:
    """(kind, folder of the model) for each."""
    good = []
    for kind, words in TRAINED.items():
        for seed in range(seeds):
            path = trained(folder / f"{kind.replace(' ', '-')}-{seed}", seed, words)
            good += [path] if kind == "good" else []
            yield kind, path
    changes: dict[str, Callable[[int], reward_folders.Change]] = {
        "good, its head negated": lambda seed: lambda head: head.neg_(),
        "good, its head constant": lambda seed: lambda head: head.zero_(),
    }
    for kind, change in changes.items():
        for seed, path in enumerate(good):
            yield kind, reward_folders.changed(path, folder / f"{kind.replace(' ', '-')}-{seed}", change(seed))
    for draw in range(untrained):
        yield "random head, untrained model", reward_folders.untrained(folder / f"untrained-{draw}", draw)
    for draw in range(untrained):
        head = reward_folders.drawn(1000 + draw)  # no seed that a training began with
        yield "random head, good model", reward_folders.changed(good[draw % seeds], folder / f"head-{draw}", head)
    for name in reward_folders.DRAWN:
        for draw in range(untrained):
            yield f"untrained {name}", reward_folders.drawn_whole(name, folder / f"{name}-{draw}", draw)
    yield "length only", reward_folders.by_length(folder / "length")


def checked(path: str) -> dict[str, Any]:
    """What the process behind `canary check-reward PATH --json` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        reward_checks.main([path, "--json"])
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def main() -> None:
    """Make them, check them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--untrained", type=int, default=40)
    parser.add_argument("--folder", type=Path, help="where they are kept; otherwise nowhere")
    asked = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="reward-models-") as made:
        for kind, path in models(asked.folder or Path(made), asked.seeds, asked.untrained):
            rows.setdefault(kind, []).append(checked(path))
    print("| model | checked | usable | pairs in order | " + " | ".join(f"*{word}*" for word in SAYS) + " |")
    print("|---|---|---|---|" + "---|" * len(SAYS))
    for kind, found in rows.items():
        said = [" ".join(one["said"] for one in each["findings"]) for each in found]
        counts = [sum(words in text for text in said) for words in SAYS.values()]
        shares = sorted(100 * each["accuracy"] for each in found if each["accuracy"] is not None)
        between = f"{shares[0]:.0f} to {shares[-1]:.0f} %" if shares else "-"
        usable = sum(each["usable"] for each in found)
        print(f"| {kind} | {len(found)} | {usable} | {between} | {' | '.join(str(count or '') for count in counts)} |")
    print(json.dumps({kind: {"checked": len(found), "usable": sum(each["usable"] for each in found)}
                      for kind, found in rows.items()}))  # fmt: skip


if __name__ == "__main__":
    main()
