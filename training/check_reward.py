"""`python -m training.check_reward`: the process that `canary check-reward` starts, which loads torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from canary_mlflow.errors import UsageError, one_line
from canary_mlflow.files.source import read_bytes
from canary_mlflow.shown import echo
from training import datasets
from training.config import CanaryConfig
from training.datasets import embedded
from training.datasets.rows import shuffled
from training.edge import ended
from training.errors import SetupError
from training.plain import read_back, to_plain
from training.reward_checks import RewardCheck, check, load
from training.reward_model import reward_folder

EMBEDDED = "preferences"
ROWS = 256  # pairs: a model that orders 57 % of them as people did is better than chance


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the named model; return 0 if it is usable, 1 if it is not."""
    parser = ArgumentParser(prog="python -m training.check_reward", description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--data", default=EMBEDDED)
    parser.add_argument("--config", help="a run's configuration as JSON: its data in place of --data")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    return ended(lambda: _run(asked.path, asked.data, asked.rows, asked.config, as_json=asked.json))


def _run(path: str, data: str, rows: int, config: str | None, *, as_json: bool) -> int:
    chosen, rejected = pairs_of_config(config, rows) if config else pairs_of_data(data, rows)
    found = check(path, load(path, reward_folder(path)), chosen, rejected)
    if as_json:
        sys.stdout.write(json.dumps(found.to_dict(), allow_nan=False) + "\n")
    for line in lines(found):
        echo(line, err=as_json)
    return 0 if found.usable else 1


def lines(found: RewardCheck) -> Iterator[str]:
    """The report for people."""
    yield f"{'PASS' if found.usable else 'BLOCK'}  {found.path}, on {found.pairs} pairs"
    for one in found.findings:
        word = {True: "ok", False: "BLOCK", None: "--"}[one.fine]
        yield f"  {word:<5}  {one.name:<8}  {one.said}"


def pairs_of_data(data: str, rows: int) -> tuple[list[str], list[str]]:
    """Whole texts of the better and of the worse answers. Raises UsageError."""
    if data == EMBEDDED:
        order = shuffled(embedded.PROMPTS, embedded.KEY)[: min(rows, embedded.HELD_OUT)]
        made = [embedded.make_row(number) for number in order]
        return [row.prompt + row.chosen for row in made], [row.prompt + row.rejected for row in made]
    try:
        text = read_bytes(Path(data)).decode("utf-8")
        read = [json.loads(line) for line in text.splitlines() if line.strip()][:rows]
        chosen = [str(row.get("prompt", "")) + str(row["chosen"]) for row in read]
        rejected = [str(row.get("prompt", "")) + str(row["rejected"]) for row in read]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(
            f"--data {data}: {one_line(error)}; expected {EMBEDDED}, or a JSONL file with prompt, chosen and rejected"
        ) from error
    if not read:
        raise UsageError(f"--data {data}: found no rows; expected pairs")
    return chosen, rejected


def pairs_of_config(file: str, rows: int) -> tuple[list[str], list[str]]:
    """The same for the held-out data of a run's configuration; empty if it has no pairs of texts."""
    found = datasets.held_out_pairs(read_back(json.loads(Path(file).read_text())), rows)
    return [better for better, _ in found], [worse for _, worse in found]


def precheck(configs: Iterable[CanaryConfig]) -> Iterator[str]:
    """Check each reward model that scores answers once, on the same data, in a separate process that loads torch; yield
    a line for each. Raises SetupError with one line for a model that no policy can be trained with."""
    asked = {
        (str(reward.path), json.dumps(to_plain(config)["data"])): config
        for config in configs
        for reward in config.algo.scored_by()
        if reward.kind == "model" and reward.precheck
    }
    for (path, _), config in asked.items():
        yield _prechecked(path, config)


def _prechecked(path: str, config: CanaryConfig) -> str:
    with tempfile.TemporaryDirectory(prefix="canary-") as folder:
        file = Path(folder, "config.json")
        file.write_text(json.dumps(to_plain(config)))
        words = [sys.executable, "-m", "training.check_reward", path, f"--config={file}", f"--rows={ROWS}", "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout.strip():
        said = (done.stderr.strip().splitlines() or [f"{path}: the check of the reward model broke off"])[-1]
        raise SetupError(said.removeprefix("canary: "))
    found = json.loads(done.stdout)
    bad = [one["said"] for one in found["findings"] if one["fine"] is False]
    if bad:
        raise SetupError(
            f"reward model {path}: {'; '.join(bad)}; expected one that a policy can be trained with "
            f"(canary check-reward {path} shows all; algo.reward.precheck=false trains all the same)"
        )
    order = next((one["said"] for one in found["findings"] if one["name"] == "accuracy"), "no pairs to try it on")
    return f"reward model {path}: {order}"


if __name__ == "__main__":
    sys.exit(main())
