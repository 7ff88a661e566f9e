"""Any local file with one JSON object per line: prompt, chosen, rejected, or prompt, completion, or a chat."""

from __future__ import annotations

import codecs
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from canary_mlflow.files.source import Bounded, TooMuch, open_regular
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.datasets.records import Reader, kind_of, reader_of, wanted
from canary_mlflow.training.datasets.rows import RawData, Row, split_held_out
from canary_mlflow.training.errors import SetupError

SETTINGS = ("path",)
KEY = "jsonl-1"


def check(config: CanaryConfig) -> None:
    """Read the file once, line by line, and raise SetupError at the first line that cannot be used."""
    _require_two(sum(1 for _ in read_rows(config)), config)


def load(config: CanaryConfig) -> RawData:
    """Read all rows; at most a fifth is held out, drawn at random but the same every time."""
    rows = list(read_rows(config))
    _require_two(len(rows), config)
    train, held_out = split_held_out(rows, config.tier.eval_rows, KEY)
    return RawData(train=train, held_out=held_out)


def read_rows(config: CanaryConfig) -> Iterator[Row]:
    """Yield the rows of data.path; blank lines are skipped. The first row decides which columns all rows must have."""
    reader: Reader | None = None
    chat: bool | None = None
    for where, line in _lines(config):
        record = _record(line, where)
        reader = reader or reader_of(config, record, where)
        row = reader.row(record, where)
        chat = row.chat if chat is None else chat
        if row.chat is not chat:
            raise SetupError(
                f"{where}: {'messages' if row.chat else 'texts'}, unlike the lines before; expected one kind"
            )
        yield row


def _require_two(count: int, config: CanaryConfig) -> None:
    if count < 2:
        found = "no rows" if count == 0 else "one row"
        raise SetupError(f"{config.data.path} has {found}; expected at least two: one to train on, one held out")


def _lines(config: CanaryConfig) -> Iterator[tuple[str, str]]:
    if not config.data.path:
        raise SetupError(f"data={config.data.name} names no file; expected data.path=FILE")
    path = Path(config.data.path).expanduser()
    if not path.is_file():
        raise SetupError(f"data.path={path} is not a file; expected one with a JSON object per line")
    number = 0
    try:
        with _open(path) as file:
            # Bytes, because only \n ends a line here: JSON strings may hold U+2028 and the like.
            for number, raw in enumerate(file, start=1):
                if number == 1:
                    _check_start(raw, path)
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    yield f"{path}, line {number}", text
    except UnicodeDecodeError as error:
        raise SetupError(f"{path}, line {number}: {error.reason}; expected UTF-8 text") from error
    except TooMuch as error:
        raise SetupError(f"{path}, after line {number}: {error}") from error
    except (OSError, EOFError) as error:
        raise SetupError(f"{path} cannot be read after line {number} ({error}); expected a readable file") from error


def _check_start(raw: bytes, path: Path) -> None:
    """Raise SetupError for formats that other programs write under the same name, before the first line fails."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in raw[:8]:
        raise SetupError(
            f"{path} is UTF-16, or no text; expected UTF-8; `iconv -f UTF-16 -t UTF-8 {path.name}` converts it"
        )
    if raw.count(b"\r") > raw.count(b"\n") and raw.strip().count(b"\r"):
        raise SetupError(f"{path} ends its lines with \\r; expected \\n; `tr '\\r' '\\n' < {path.name}` converts it")
    if raw.lstrip().removeprefix(codecs.BOM_UTF8).startswith(b"["):
        raise SetupError(
            f"{path} is one JSON array; expected an object per line; `jq -c '.[]' {path.name}` writes them so"
        )


def _open(path: Path) -> BinaryIO:
    raw = open_regular(path)
    return Bounded(gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw).buffered()


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.rstrip())
    except json.JSONDecodeError as error:
        raise SetupError(
            f"{where}: no JSON ({error.msg} at column {error.colno}); expected one object per line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise SetupError(f"{where}: no usable JSON ({type(error).__name__}); expected one object per line") from error
    if not isinstance(record, dict):
        raise SetupError(f"{where}: {kind_of(record)}; expected an object with {wanted()}")
    return record
