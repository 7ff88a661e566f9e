"""An evaluation as it is kept in MLflow: what was read of a harness's files, in one file of JSON, evals.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.evals.drafts import score_of
from canary_mlflow.evals.reading import Results
from canary_mlflow.files.documents import parse_json
from canary_mlflow.gates.model.items import Item, Table

TEXTS = ("group", "prompt", "answer", "asked", "said")
MALFORMED = (LookupError, TypeError, AttributeError, ValueError)  # what somebody else wrote


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An evaluation. `weights`: the digest of the folder that was evaluated, by the word of who added it; "" if not
    shown. `digest`: the SHA-256 of the file."""

    results: Results
    weights: str
    digest: str


def to_text(results: Results, weights: str) -> str:
    """The file's text; the same for the same results. Of files it has the names alone: paths are nobody's business."""
    tables = [asdict(table) | {"seed": at} for seeds in results.tables.values() for at, table in enumerate(seeds)]
    files = {key: Path(name).name for key, name in results.digests.items()}
    return json.dumps({"files": files, "weights": weights, "tables": tables}, sort_keys=True)


def from_bytes(raw: bytes, where: str) -> Stored:
    """What `to_text` wrote. Raises UsageError for anything else: who may write the run may write the file."""
    try:
        found = parse_json(raw)
        tables: dict[str, list[Table]] = {}
        for one in sorted(found["tables"], key=lambda one: int(one["seed"])):
            tables.setdefault(str(one["benchmark"]), []).append(_table(one))
        if not tables:
            raise ValueError("no table")
        digests = {str(key): str(name) for key, name in found["files"].items()}
        weights = str(found["weights"])
    except MALFORMED as error:
        raise UsageError(
            f"{where}: evals.json is not as canary evals add writes it ({type(error).__name__}: {error}); expected its "
            "own; add the evaluation again"
        ) from None
    results = Results(tables={name: tuple(tables[name]) for name in sorted(tables)}, digests=digests)
    return Stored(results=results, weights=weights, digest=hashlib.sha256(raw).hexdigest())


def _table(found: Mapping[str, Any]) -> Table:
    return Table(
        benchmark=str(found["benchmark"]),
        source=str(found["source"]),
        items={str(key): _item(one) for key, one in found["items"].items()},
        higher=found["higher"] is True,
        facts={str(key): str(value) for key, value in found["facts"].items()},
        grouped=str(found["grouped"]),
        aggregate=score_of(found["aggregate"]),
        run=str(found["run"]),
    )


def _item(found: Mapping[str, Any]) -> Item:
    return Item(scores=tuple(map(score_of, found["scores"])), **{name: str(found[name]) for name in TEXTS})
