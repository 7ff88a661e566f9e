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
from canary_mlflow.module_runner import module_command
from canary_mlflow.shown import echo
from canary_mlflow.training import datasets
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.datasets import embedded
from canary_mlflow.training.datasets.records import kind_of
from canary_mlflow.training.datasets.rows import shuffled
from canary_mlflow.training.edge import ended
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.plain import read_back, to_plain
from canary_mlflow.training.reward_checks import RewardCheck, check, load
from canary_mlflow.training.reward_sources import reward_folder

EMBEDDED = "preferences"
ANSWERS = ("chosen", "rejected")
WANTED = f"expected {EMBEDDED}, or a JSONL file with prompt, chosen and rejected"
ROWS = 256  # pairs: a model that orders 57 % of them as people did is better than chance
CODES = {"PASS": 0, "BLOCK": 1, "INCONCLUSIVE": 3}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the named model; return 0 if it is usable, 1 if it is not, 3 if the pairs do not tell."""
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
    return CODES[found.outcome]


def lines(found: RewardCheck) -> Iterator[str]:
    """The report for people."""
    yield f"{found.outcome}  {found.path}, on {found.pairs} pair{'s' * (found.pairs != 1)}"
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
        lines = read_bytes(Path(data)).decode("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"--data {data}: {getattr(error, 'strerror', '') or one_line(error)}; {WANTED}") from error
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()][:rows]
    found = [_pair(line, f"--data {data}, line {number}") for number, line in filled]
    if not found:
        raise UsageError(f"--data {data}: found no rows; expected pairs")
    return [better for better, _ in found], [worse for _, worse in found]


def _pair(line: str, where: str) -> tuple[str, str]:
    """Both whole texts of a row: what no classifier can read as text would get a score all the same."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: no JSON ({one_line(error)}); {WANTED}") from error
    if not isinstance(row, dict):
        raise UsageError(f"{where}: {kind_of(row)}; {WANTED}")
    prompt = row.get("prompt") if row.get("prompt") is not None else ""
    for name, value in (("prompt", prompt), *((name, row.get(name)) for name in ANSWERS)):
        if not isinstance(value, str):
            found = f"{name} is {kind_of(value)}" if name in row else f"no {name}"
            raise UsageError(f"{where}: {found}; {WANTED}, each a text")
        if name in ANSWERS and not value.strip():
            raise UsageError(f"{where}: {name} is empty; {WANTED}")
    return prompt + row["chosen"], prompt + row["rejected"]


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
        words = [
            *module_command("canary_mlflow.training.check_reward"),
            path,
            f"--config={file}",
            f"--rows={ROWS}",
            "--json",
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in CODES.values() or not done.stdout.strip():
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
