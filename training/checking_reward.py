"""`python -m training.checking_reward`: what `canary check-reward` starts, where torch is."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path

from canary_mlflow.errors import UsageError, one_line
from canary_mlflow.files.source import read_bytes
from canary_mlflow.shown import echo
from training.check_reward import RewardCheck, check, load
from training.datasets import embedded
from training.datasets.rows import shuffled
from training.edge import ended
from training.reward_model import reward_folder

EMBEDDED = "preferences"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the model that the words name; 0 where it is usable, 1 where it is not."""
    parser = ArgumentParser(prog="python -m training.checking_reward", description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--data", default=EMBEDDED)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    return ended(lambda: _run(asked.path, asked.data, asked.rows, as_json=asked.json))


def _run(path: str, data: str, rows: int, *, as_json: bool) -> int:
    chosen, rejected = pairs(data, rows)
    found = check(path, load(path, reward_folder(path)), chosen, rejected)
    if as_json:
        sys.stdout.write(json.dumps(found.to_dict()) + "\n")
    for line in lines(found):
        echo(line, err=as_json)
    return 0 if found.usable else 1


def lines(found: RewardCheck) -> Iterator[str]:
    """The report for people."""
    yield f"{'PASS' if found.usable else 'BLOCK'}  {found.path}, on {found.pairs} pairs"
    for one in found.findings:
        word = {True: "ok", False: "BLOCK", None: "--"}[one.fine]
        yield f"  {word:<5}  {one.name:<8}  {one.said}"


def pairs(data: str, rows: int) -> tuple[list[str], list[str]]:
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


if __name__ == "__main__":
    sys.exit(main())
