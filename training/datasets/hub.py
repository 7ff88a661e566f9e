"""Any data that `datasets` reads: a hub repository, a folder with the same layout, or a file, by column names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from canary_mlflow.training.config import CanaryConfig, DataConfig
from canary_mlflow.training.datasets.records import COLUMNS, Reader, named, reader_of
from canary_mlflow.training.datasets.rows import RawData, Row, shuffled, split_held_out
from canary_mlflow.training.errors import SetupError, first_line
from canary_mlflow.training.hub import Repository, locate

BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".arrow": "arrow"}
PATTERNS = ("README.md", *(f"*{suffix}{packed}" for suffix in BUILDERS for packed in ("", ".gz")))
SETTINGS = ("path", "revision", "split", "subset", "held_out", "columns")
KEY = "hub-1"
SPARE = 2  # times as many rows as needed: some are left out later


def check(config: CanaryConfig) -> None:
    """Raise SetupError unless the files are here, or can be fetched; loads no `datasets`."""
    if wrong := sorted(set(config.data.columns) - set(COLUMNS)):
        raise SetupError(f"data.columns has {wrong[0]!r}; expected some of {', '.join(COLUMNS)}")
    place(config.data)


def load(config: CanaryConfig) -> RawData:
    """Read the split; held-out rows are those of data.held_out, else at most a fifth of it, the same every time."""
    want = SPARE * config.tier.eval_rows
    if config.data.held_out:
        train, left_out = _rows(config, config.data.split, SPARE * config.tier.train_rows)
        held_out, more = _rows(config, config.data.held_out, want)
        return RawData(train=train, held_out=held_out, unusable=left_out + more)
    rows, left_out = _rows(config, config.data.split, SPARE * (config.tier.train_rows + config.tier.eval_rows))
    if len(rows) < 2:
        raise SetupError(
            f"data.path={config.data.path}, split {config.data.split!r}, has {len(rows)} usable rows; expected at "
            "least two: one to train on, one held out"
        )
    train, held_out = split_held_out(rows, want, KEY)
    return RawData(train=train, held_out=held_out, unusable=left_out)


def place(data: DataConfig) -> Path:
    """The file or folder with the data; missing files are fetched from the hub. Raises SetupError."""
    if not data.path:
        raise SetupError(f"data={data.name} names nothing; expected data.path=OWNER/NAME, a folder or a file")
    path = Path(data.path).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if _builder(path) is None:
            raise SetupError(
                f"data.path={data.path} ends in {path.suffix!r}; expected {', '.join(BUILDERS)}, or .gz after"
            )
        return path
    if data.path.count("/") != 1 or data.path.startswith((".", "/", "~")):
        raise SetupError(f"data.path={data.path} does not exist; expected a folder, a file or a repository OWNER/NAME")

    def missing(snapshot: Path) -> list[str]:
        return [] if any(_builder(file) for file in snapshot.rglob("*")) else [f"files of {', '.join(BUILDERS)}"]

    return locate(
        Repository(
            name=data.path,
            kind="dataset",
            asked_by=f"data={data.name}",
            probe="README.md",
            patterns=PATTERNS,
            missing=missing,
            revision=data.revision,
        )
    )


def _rows(config: CanaryConfig, split: str, most: int) -> tuple[list[Row], int]:
    """At most `most` rows of a split, in a fixed random order, and the number of rows that could not be used."""
    table = _table(config.data, split)
    names = _columns(config.data, table.column_names)
    where = f"data.path={config.data.path}, split {split}"
    reader = reader_of(config, names, where)
    names = {name: column for name, column in names.items() if reader.keeps or name in (*COLUMNS, "tools")}
    order = shuffled(len(table), KEY)[:most]
    found, refused = _read(reader, table.select_columns([*names.values()]).select(order).to_list(), order, names, where)
    if refused and len(refused) > len(found):
        raise refused[0]
    return found, len(refused)


def _read(
    reader: Reader, records: list[dict[str, Any]], order: list[int], names: dict[str, str], where: str
) -> tuple[list[Row], list[SetupError]]:
    rows: list[Row] = []
    refused: list[SetupError] = []
    for at, record in zip(order, records, strict=True):
        try:
            row = reader.row({name: record[column] for name, column in names.items()}, f"{where}, row {at + 1}")
        except SetupError as error:
            refused.append(error)
        else:
            rows.append(row)
    if len({row.chat for row in rows}) > 1:
        raise SetupError(f"{where}: some rows are chats and some are texts; expected one kind")
    return rows, refused


def _columns(data: DataConfig, found: list[str]) -> dict[str, str]:
    """The role of each column: by data.columns, else by its own name, unless another column was given that role."""
    named_ones = {name: column for name, column in data.columns.items() if column}
    for name, column in named_ones.items():
        if column not in found:
            raise SetupError(
                f"data.columns.{name}={column}: data.path={data.path} has no such column; it has {named(found)}"
            )
    taken = set(named_ones.values())
    own = {column: column for column in found if column not in taken and column not in named_ones}
    return {**own, **named_ones}


def _table(data: DataConfig, split: str) -> Any:
    from datasets import load_dataset

    path = place(data)
    try:
        if path.is_file():
            more = {"sep": "\t"} if ".tsv" in path.suffixes else {}
            return load_dataset(str(_builder(path)), data_files=str(path), split=split, **more)
        return load_dataset(str(path), name=data.subset, split=split)
    except Exception as error:  # `datasets` lets through whatever its readers of each format raise
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        advice = "; data.subset=NAME says which" if "onfig name is missing" in str(error) else ""
        raise SetupError(
            f"data.path={data.path}, split {split!r}, cannot be read: {first_line(cause)}{advice}"
        ) from error


def _builder(path: Path) -> str | None:
    return BUILDERS.get(Path(path.stem if path.suffix == ".gz" else path.name).suffix)
