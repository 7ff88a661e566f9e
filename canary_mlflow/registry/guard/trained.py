"""Are a folder's tensors those with which a run of the session ended? Without torch, so that whoever signs can look.

The run's trained.json (tracking/probes/trained.py) has the digest of each tensor that its own saves write, and a few
values and the norm, by which one that was rounded or merged is known again. Only a digest cannot be imitated.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from canary_mlflow.errors import StoreError, UsageError
from canary_mlflow.files.documents import read_json
from canary_mlflow.registry.guard.binding import file_digest, files_at
from canary_mlflow.registry.guard.weights import CHUNK, WIDTHS, Unfit, tensors
from canary_mlflow.tracking.describing.trained import FILE, TYPES, merged_name, places, rules_digest

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRun

    from canary_mlflow.ledger.chain import Row

Record = Mapping[str, Any]
Numbers = np.ndarray[Any, Any]
KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # how NumPy reads a type
ERRORS = {"<f8": 2.0**-40, "<f4": 2.0**-22, "<f2": 2.0**-10, "<u2": 2.0**-8}  # of a number that was rounded to the type
SMALLEST = 2.0**-24  # float16's
MALFORMED = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)  # what somebody else wrote
MOST = 1 << 26  # bytes of a record that are read
NO_FUNCTION = frozenset({"_from_model_config", "_name_or_path", "architectures", "dtype", "inference_mode",
                         "peft_version", "torch_dtype", "transformers_version", "use_cache"})  # fmt: skip
"""Settings that a save writes otherwise than the run had them, and that change no answer of a model."""
ONE, INDEX = "{}.safetensors", "{}.safetensors.index.json"  # what a loader looks for, in this order


@dataclass(frozen=True, kw_only=True)
class Compared:
    """`run`: the one whose tensors these are, "" for none; `exact`: each by its name and its digest, and with the
    settings and the tokenizer that the run saved. `fault`: what another tensor holds, if so; else `unknown` says what
    was not found."""

    run: str = ""
    exact: bool = False
    fault: str = ""
    unknown: str = "its runs did not record what they trained"


def compare(folder: Path, records: Mapping[str, Record]) -> Compared:
    """The folder against what each run ended with, by run id: the first whose tensors it holds decides, and else the
    nearest."""
    found: list[tuple[int, Compared]] = []
    try:
        held = held_in(folder) if records else {}
    except Unfit as error:
        return Compared(fault=str(error), unknown="")
    except MALFORMED as error:
        return Compared(unknown=f"the folder cannot be compared ({error})")
    for run_id, record in records.items():
        try:
            other, unknown = differences(folder, held, record)
        except MALFORMED as error:
            other, unknown = [], f"run {run_id} and the folder cannot be compared ({error})"
        if not other and not unknown:
            exact = is_exact(held, record) and not any(strictly(folder, name, record) for name in settings_of(folder))
            return Compared(run=run_id, exact=exact, unknown="")
        more = f", and {len(other) - 1} more differ" if len(other) > 1 else ""
        found.append((len(other), Compared(fault=f"{other[0]} (run {run_id}){more}" if other else "", unknown=unknown)))
    return min(found, key=lambda one: one[0])[1] if found else Compared()


@dataclass
class Tensor:
    """The numbers of a tensor in a file, which are read when they are asked for."""

    numbers: Numbers

    @cached_property
    def digest(self) -> str:
        """sha256 of its type and bytes."""
        found = hashlib.sha256(self.numbers.dtype.str.encode())
        for at in range(0, len(self.numbers), CHUNK):
            found.update(self.numbers[at : at + CHUNK].tobytes())
        return found.hexdigest()


def held_in(folder: Path) -> dict[str, Tensor]:
    """The tensors, whose numbers can be compared, of the files that a loader takes. Raises Unfit for an unreadable one,
    and for a name that stands in two."""
    found: dict[str, Tensor] = {}
    stem = "adapter_model" if is_adapter(folder) else "model"
    files = [folder / ONE.format(stem)]
    if not files[0].is_file() and (index := folder / INDEX.format(stem)).is_file():
        files = [folder / str(name) for name in sorted({*read_json(index)["weight_map"].values()})]
    for file in filter(Path.is_file, files):
        with file.open("rb") as stream:
            named = [one for one in tensors(stream, file.stat().st_size) if one.dtype in KINDS and one.end > one.start]
        for one in named:
            if one.name in found:
                raise Unfit(f"{one.name} stands in two files")
            count = (one.end - one.start) // WIDTHS[one.dtype]
            found[one.name] = Tensor(np.memmap(file, KINDS[one.dtype], "r", one.start, (count,)))
    return found


def is_adapter(folder: Path) -> bool:
    """Whether a folder is that of an adapter."""
    return (folder / "adapter_config.json").is_file()


def is_exact(held: Mapping[str, Tensor], record: Record) -> bool:
    """Whether a folder holds what a save of the run writes: each trained tensor under its name, and no other."""
    told = {name: one for name, one in record.get("tensors", {}).items() if "digest" in one}
    trained = {name for name, one in told.items() if one.get("norm") is not None}
    named = trained <= held.keys() <= told.keys()
    return bool(trained) and named and all(one.digest == told[name]["digest"] for name, one in held.items())


def differences(folder: Path, held: Mapping[str, Tensor], record: Record) -> tuple[list[str], str]:
    """The tensors of a folder that are not those of a run, in words, and what of the run was not found there."""
    if said := record.get("unknown"):
        return [], f"its run could not record what it trained: {said}"
    adapted, recorded = is_adapter(folder), record["tensors"]
    merged = {part for one in recorded.values() for part in one.get("of", ())}
    other, missing = [], "" if any(one.get("norm") for one in recorded.values()) else "its run recorded no training"
    for name, one in recorded.items():
        if adapted if "of" in one else not adapted and ".base_layer." in name:
            continue  # a merge changes the weight below
        there = name if adapted else merged_name(name)
        if there in held and (said := differs(held[there], one)):
            other.append(f"{there} {said}")
        if there in held or one.get("norm") is None or (name in merged and not adapted):
            continue
        alike = (
            found for found in held.values() if len(found.numbers) == one["count"]
        )  # some are saved by another name
        if all(differs(tensor, one) for tensor in alike):
            missing = f"{there}, which was trained, is not among its tensors"
    other += filter(None, [other_generation(folder, record, merge=bool(merged) and not adapted)])
    other += filter(None, [other_tokenizer(folder, record)])
    return other, missing or settings_differ(folder, f"{'adapter_' * adapted}config.json", record)


def differs(tensor: Tensor, one: Mapping[str, Any]) -> str:
    """What keeps a tensor from being the recorded one, in words; '' if it is, within the rounding of its type."""
    held = tensor.numbers
    if len(held) != one["count"]:
        return f"has {len(held)} numbers, at the end of the training it had {one['count']}"
    kinds, added = {held.dtype.str, TYPES[one["dtype"]]}, one.get("added")
    error, least = max(ERRORS[kind] for kind in kinds), SMALLEST * ("<f2" in kinds)
    exact = len(kinds) == 1 and not added
    found = as_floats(held[places(len(held))])
    for value, start, more in zip(found, one["values"], added or [0.0] * len(found), strict=True):
        allowed = 0.0 if exact else error * (abs(start) + abs(more) + abs(start + more)) + least
        if not abs(value - start - more) <= allowed:
            before = "as before the training" if added and value == start else f"{value:.6g}"
            return f"is {before}, at the end of the training it was {start + more:.6g}"
    if (norm := one.get("norm")) is not None:
        parts = (as_floats(held[at : at + CHUNK]) for at in range(0, len(held), CHUNK))
        now = math.sqrt(sum(float(part @ part) for part in parts))
        if not math.isclose(now, norm, rel_tol=max(error, 1e-5)):
            return f"has the norm {now:.6g}, at the end of the training it was {norm:.6g}"
    if exact and "digest" in one and tensor.digest != one["digest"]:
        return "holds other numbers than at the end of the training"
    return ""


def as_floats(read: Numbers) -> Numbers:
    """Numbers as they were read, bfloat16 as integers, in double precision."""
    return (read.astype("<u4") << 16).view("<f4").astype(float) if read.dtype.kind == "u" else read.astype(float)


def settings_of(folder: Path) -> Iterator[str]:
    """The files of settings by which a folder is loaded."""
    yield "adapter_config.json" if is_adapter(folder) else "config.json"
    yield "generation_config.json"


def both(folder: Path, name: str, record: Record) -> Iterator[tuple[str, Any, Any]]:
    """Each setting that a file of a folder and the run have otherwise, with both values; None for a missing one."""
    recorded, file = record.get(name) or {}, folder / name
    found = read_json(file) if file.is_file() else {}
    named = found.get("auto_mapping") or {}  # PEFT writes it when it saves
    library = str(named.get("parent_library", ""))
    own = named.get("base_model_class") == record.get("class") and library.startswith("transformers.")
    for key in sorted((found.keys() | recorded.keys()) - NO_FUNCTION - ({"auto_mapping"} if own else set())):
        now, then = (one if isinstance(one, dict) else sorted(map(str, one if isinstance(one, list) else [one]))
                     for one in (found.get(key), recorded.get(key)))  # fmt: skip
        if now != then:
            yield key, found.get(key), recorded.get(key)


def strictly(folder: Path, name: str, record: Record) -> str:
    """The first setting that is not as a save of the run writes it, one that came or went too; '' if all are."""
    file, kind = folder / name, record.get("class", "")
    for key, now, then in both(folder, name, record):
        if file.is_file():  # else the library's own defaults hold, as for a model without generation settings
            return f"{name} says {key} {now}, the run had {then}"
    named = (read_json(file) if file.is_file() else {}).get("architectures") or [kind]
    return "" if named == [kind] else f"{name} says architectures {named}, the run had {kind}"


def settings_differ(folder: Path, name: str, record: Record) -> str:
    """The first setting that a file of a folder has otherwise than the run; '' if none is."""
    for key, now, then in both(folder, name, record):
        if now is not None and then is not None and key != "base_model_name_or_path":
            return f"{name} says {key} {now}, the run had {then}"
    return ""


def other_generation(folder: Path, record: Record, *, merge: bool) -> str:
    """How a model goes on by itself, where that is set otherwise than in the run; '' if it is not. A merge keeps its
    base's settings: of these only another end, or another beginning, counts."""
    name = "generation_config.json"
    for key, now, then in both(folder, name, record) if (folder / name).is_file() else ():
        if not merge or (key.endswith("_token_id") and None not in (now, then)):
            return f"{name} says {key} {now}, the run had {then}"
    return ""


def other_tokenizer(folder: Path, record: Record) -> str:
    """That a folder's tokenizer has other rules, or another vocabulary, than the run's; '' if not, or not known."""
    file = folder / "tokenizer.json"
    if not (record.get("tokenizer") and file.is_file()) or rules_digest(read_json(file, MOST)) == record["tokenizer"]:
        return ""
    return "its tokenizer.json is not that of its run"


def records_of(runs: Iterable[MlflowRun], store: str, rows: Iterable[Row] = ()) -> dict[str, Record]:
    """Run id → what it ended with, of the runs that recorded it. `rows`: of their session, in which the digest of each
    must be; without any there is no ledger."""
    told = [row.facts for row in rows]
    known = {run_id: one for facts in told for run_id, one in (facts.get("trained") or {}).items()}
    found = ((run.info.run_id, one) for run in runs for one in recorded(run, store))
    return {run_id: content for run_id, (digest, content) in found if known.get(run_id) == digest or not told}


def recorded(run: MlflowRun, store: str = "") -> Iterator[tuple[str, Record]]:
    """The digest of a run's trained.json and its content, if it has one that can be read."""
    place = f"{run.info.artifact_uri}/{FILE}"
    with suppress(StoreError, UsageError, OSError, ValueError), files_at(place, store=store) as file:
        if file.is_file() and isinstance(content := read_json(file, MOST), dict):
            yield file_digest(file), content
