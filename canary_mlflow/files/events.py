"""TensorBoard's event files: one file, or a folder of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from canary_mlflow.errors import UsageError
from canary_mlflow.files.columns import Columns
from canary_mlflow.files.from_columns import history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.names import is_verl, translate
from canary_mlflow.files.source import MAX_EVENT, MAX_ROWS, open_regular, too_many_rows
from canary_mlflow.files.text import HistoryFile

PATTERN = "*tfevents*"
# TFRecord: length, its checksum, the event, its checksum (https://www.tensorflow.org/tutorials/load_data/tfrecord).
_HEAD, _TAIL = struct.Struct("<QI"), 4
_ONE = struct.Struct("<f")
_FIRST = b"\x09"  # of every event: field 1, wall_time, as eight bytes
_FLOAT = 1  # DataType of a tensor

_Field = descriptor_pb2.FieldDescriptorProto
# Message → (field, number, type, message type; * for a repeated field).
_MESSAGES = {
    "Event": [("step", 2, _Field.TYPE_INT64, ""), ("summary", 5, _Field.TYPE_MESSAGE, "Summary")],
    "Summary": [("value", 1, _Field.TYPE_MESSAGE, "Value*")],
    "Value": [
        ("tag", 1, _Field.TYPE_STRING, ""),
        ("simple_value", 2, _Field.TYPE_FLOAT, ""),
        ("tensor", 8, _Field.TYPE_MESSAGE, "Tensor"),
    ],
    "Tensor": [
        ("dtype", 1, _Field.TYPE_INT32, ""),
        ("tensor_content", 4, _Field.TYPE_BYTES, ""),
        ("float_val", 5, _Field.TYPE_FLOAT, "*"),
    ],
}


def event_files(path: Path) -> list[Path]:
    """The event files that `path` is or contains, oldest first; empty if it is something else."""
    if path.is_dir():
        return sorted(path.glob(PATTERN))
    try:
        with open_regular(path) as raw:
            head = raw.read(_HEAD.size + 1)
    except OSError:
        return []  # the readers of text say what is wrong
    # A length below a MiB has five zero bytes, which no text has.
    return [path] if head[3:8] == bytes(5) and head[_HEAD.size :] == _FIRST else []


def runs_below(paths: Iterable[Path]) -> list[Path]:
    """The paths; for a folder without event files the folders below that have some, each a run, as TensorBoard has
    it."""
    found: list[Path] = []
    for path in paths:
        inner = [] if not path.is_dir() or event_files(path) else sorted(path.iterdir())
        below = runs_below(one for one in inner if one.is_dir() and not one.is_symlink())
        found += [one for one in below if event_files(one)] or [path]
    return found


def read_events(file: HistoryFile) -> History | None:
    """The scalars of an event file, or of a folder of them, as one run; a last event that was cut off is left out."""
    path, files = file.path, event_files(file.path)
    if not files:
        return None
    columns = Columns(path, row_word="event")
    notes: list[str] = []
    kind = "tensorboard"
    for number, (step, row) in enumerate(_by_step(files, notes), 1):
        known = {"step": step, **row}
        if is_verl(known):
            kind, known = "tensorboard of verl", translate(known)
        columns.add(known, number)
        if number > MAX_ROWS:
            raise too_many_rows(path)
    if not columns.rows:
        raise UsageError(
            f"{path}: holds no scalar; expected the events of a run that logged some; take the file that grew with it"
        )
    return history_of(columns, kind, notes)


def _by_step(files: list[Path], notes: list[str]) -> Iterator[tuple[int, dict[str, float]]]:
    """Scalars of neighbouring events with one step belong together: most writers make an event per scalar."""
    at, row = 0, dict[str, float]()
    for file in files:
        for step, values in _scalars(file, notes):
            if row and step != at:
                yield at, row
                row = {}
            at = step
            row |= values
    if row:
        yield at, row


def _scalars(file: Path, notes: list[str]) -> Iterator[tuple[int, dict[str, float]]]:
    event_class = _event_class()
    try:
        with open_regular(file) as raw:
            for number, record in enumerate(_records(file, raw, notes), 1):
                try:
                    event = event_class.FromString(record)
                except DecodeError:
                    raise UsageError(
                        f"{file}: event {number} is damaged; expected TensorBoard's events; copy the file again"
                    ) from None
                values = {value.tag: _number(value) for value in event.summary.value}
                found = {tag: number for tag, number in values.items() if number is not None}
                if found:
                    yield event.step, found
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror or error}); expected a readable file") from None


def _records(file: Path, raw: BinaryIO, notes: list[str]) -> Iterator[bytes]:
    size = file.stat().st_size
    events = 0
    while head := raw.read(_HEAD.size):
        events += 1
        if events > 10 * MAX_ROWS:
            raise too_many_rows(file)
        length = _HEAD.unpack(head)[0] if len(head) == _HEAD.size else size
        if raw.tell() + length + _TAIL > size:
            notes.append(f"the last event of {file.name} is cut off; read without it")
            return
        if length <= MAX_EVENT:
            yield raw.read(length)
        raw.seek(_TAIL + (length if length > MAX_EVENT else 0), 1)


def _number(value: Any) -> float | None:
    """A scalar, in the old form or in TensorFlow 2's; None for histograms, texts, pictures."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.tensor.dtype != _FLOAT:
        return None
    values = list(value.tensor.float_val) or [item for (item,) in _ONE.iter_unpack(value.tensor.tensor_content)]
    return float(values[0]) if len(values) == 1 else None


@cache
def _event_class() -> Any:
    """The fields of Event that scalars need, from tensorflow/core/util/event.proto and framework/*.proto.

    Declared here, because both packages that ship the class load torch on the way to it.
    """
    file = descriptor_pb2.FileDescriptorProto(name="canary_events.proto", package="canary", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            repeated = of.endswith("*")
            message.field.add(
                name=field,
                number=number,
                type=kind,
                type_name=f".canary.{of.rstrip('*')}" if of.rstrip("*") else None,
                label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
                oneof_index=0 if name == "Value" and field != "tag" else None,
            )
        if name == "Value":
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("canary.Event"))
