"""Anthropic/hh-rlhf: pairs of dialogues, split into the prompt they share and their two last answers."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from canary_mlflow.training.config import CanaryConfig, DataConfig
from canary_mlflow.training.datasets.rows import RawData, Row, shuffled, split_held_out
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.hub import Repository, locate

SUBSETS = (
    "harmless-base",
    "helpful-base",
    "helpful-online",
    "helpful-rejection-sampled",
)  # the hub's default four
HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"
SETTINGS = ("path", "revision", "split")
KEY = "hh-rlhf-1"


def check(config: CanaryConfig) -> None:
    """Raise SetupError unless the files are here (or can be fetched) and begin with a pair; loads no torch."""
    files = split_files(config.data, config.data.split)
    record = _first_record(files[0])
    if absent := [name for name in ("chosen", "rejected") if not isinstance(record.get(name), str)]:
        found = ", ".join(sorted(record)) or "none"
        raise SetupError(f"{files[0]}, line 1: no text column {absent[0]!r}; found {found}; expected chosen, rejected")
    if split_pair(record["chosen"], record["rejected"]) is None and ASSISTANT.strip() not in record["chosen"]:
        raise SetupError(f"{files[0]}, line 1: no dialogue; expected turns that begin with Human: and Assistant:")


def load(config: CanaryConfig) -> RawData:
    """Read the split; held-out rows come from the test split if there is one, else from the same split."""
    pairs, unusable = _read(config.data, config.data.split)
    if config.data.split == "train" and _files(data_folder(config.data), "test"):
        held_out, more = _read(config.data, "test")
        return RawData(train=_reordered(pairs), held_out=_reordered(held_out), unusable=unusable + more)
    # Twice as many as needed, because pairs that are equal once shortened are dropped later.
    train, kept_back = split_held_out(pairs, 2 * config.tier.eval_rows, KEY)
    return RawData(train=train, held_out=kept_back, unusable=unusable)


def split_pair(chosen: str, rejected: str) -> Row | None:
    """Split two dialogues into their shared prompt and two last answers; None if there is no such split.

    The prompt ends with the last "Assistant:" that both have in common; a pair that diverges in an
    earlier turn (an answer that contains a further human turn) or has an empty answer is not usable.
    """
    shared = os.path.commonprefix([chosen, rejected])  # noqa: RUF071 - by character on purpose
    end = shared.rfind(ASSISTANT)
    if end < 0:
        return None
    end += len(ASSISTANT)
    row = Row(chosen[:end], chosen[end:].rstrip(), rejected[end:].rstrip())
    if HUMAN in row.chosen or HUMAN in row.rejected or not row.chosen.strip() or not row.rejected.strip():
        return None
    return row


def data_folder(data: DataConfig) -> Path:
    """Return the folder with the files: data.path itself if it is a folder, else the hub repository of that name."""
    if not data.path:
        raise SetupError(f"data={data.name} names no repository; expected data.path=OWNER/NAME or a folder")
    folder = Path(data.path).expanduser()
    if folder.is_dir():
        return folder
    if data.path.count("/") != 1 or data.path.startswith((".", "/", "~")):
        raise SetupError(
            f"data.path={data.path} is not a folder; expected one with files such as {SUBSETS[1]}/train.jsonl.gz"
        )

    def missing(snapshot: Path) -> list[str]:
        names = [f"{subset}/{split}.jsonl.gz" for subset in SUBSETS for split in {data.split, "test"}]
        return [name for name in sorted(names) if not (snapshot / name).is_file()]

    return locate(
        Repository(
            name=data.path,
            kind="dataset",
            asked_by=f"data={data.name}",
            probe=f"{SUBSETS[0]}/{data.split}.jsonl.gz",
            patterns=tuple(f"{subset}/*.jsonl.gz" for subset in SUBSETS),
            missing=missing,
            revision=data.revision,
        )
    )


def split_files(data: DataConfig, split: str) -> list[Path]:
    """Return the files of a split, in a fixed order; SetupError when there is none."""
    folder = data_folder(data)
    if files := _files(folder, split):
        return files
    raise SetupError(
        f"{folder} has no {split}.jsonl.gz, neither itself nor in {', '.join(SUBSETS)}; expected the files of "
        "Anthropic/hh-rlhf; check data.path and data.split"
    )


def _files(folder: Path, split: str) -> list[Path]:
    places = [folder / subset for subset in SUBSETS] + [folder]
    names = [place / f"{split}.jsonl{suffix}" for place in places for suffix in (".gz", "")]
    return [name for name in names if name.is_file()]


def _read(data: DataConfig, split: str) -> tuple[list[Row], int]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError

    files = split_files(data, split)
    try:
        table = load_dataset("json", data_files=[str(path) for path in files], split="train")
    except (DatasetGenerationError, OSError, ValueError) as error:
        raise SetupError(f"{files[0].parent} cannot be read as JSON lines ({error}); fetch the files again") from error
    pairs = [split_pair(*texts) for texts in zip(table["chosen"], table["rejected"], strict=True)]
    usable = [pair for pair in pairs if pair is not None]
    return usable, len(pairs) - len(usable)


def _reordered(rows: list[Row]) -> Iterator[Row]:
    """Yield the rows in a fixed random order: the files are sorted by subset."""
    return (rows[index] for index in shuffled(len(rows), KEY))


def _first_record(path: Path) -> dict[str, Any]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            record = json.loads(file.readline() or "null")
    except (OSError, EOFError, ValueError) as error:
        raise SetupError(f"{path} is not a gzipped JSON lines file ({error}); fetch it again") from error
    if not isinstance(record, dict):
        raise SetupError(f"{path} is empty or its first line is not an object; expected chosen and rejected texts")
    return record
