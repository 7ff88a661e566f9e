"""The evaluations of a training: what several held-out sets say together, and which rows each was about. Loads no
torch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from canary_mlflow.tracking.describing.data_facts import IGNORED_LABEL, rows_in, tokens_in
from canary_mlflow.tracking.describing.fact_tags import digest, to_tags
from canary_mlflow.tracking.describing.schema import as_number, canonical

PREFIX = "eval_"
TIMED = "_runtime"
"""Transformers logs `eval_runtime` at the end of each evaluation, `eval_docs_runtime` for a set by name."""
AS_TRAINED = "as the training left them"


class Evaluations:
    """Transformers evaluates `eval_dataset={"docs": …, "code": …}` set by set and logs eval_docs_loss, then
    eval_code_loss, but no eval_loss, which is what decides."""

    def __init__(self, trainer: Any) -> None:
        data = getattr(trainer, "eval_dataset", None)
        self._sets = frozenset(map(str, data if isinstance(data, Mapping) and not hasattr(data, "features") else ()))
        self._step = -1
        self._held: dict[str, dict[str, float]] = {}  # canonical name → set → value

    def means(self, step: int, logs: Mapping[str, object]) -> dict[str, float]:
        """Canonical name → mean over the sets, for each metric that the last of the sets has just logged."""
        found: dict[str, float] = {}
        if step != self._step:
            self._step, self._held = step, {}
        for name in self._sets:
            start = f"{PREFIX}{name}_"
            for key, value in logs.items():
                metric, number = canonical(PREFIX + key.removeprefix(start)), as_number(value)
                if not key.startswith(start) or metric is None or number is None:
                    continue
                held = self._held.setdefault(metric, {})
                held[name] = number
                if held.keys() == self._sets:
                    found[metric] = sum(held.values()) / len(held)
                    del self._held[metric]
        return found


class Evaluated:
    """The facts `evaluated.eval`, or `evaluated.eval_docs` for a set by name: on which rows it was evaluated last, also
    after the training. Then also `evaluated.weights_eval`, whether these are the ones that the training ended with, and
    `evaluated.labels_eval`, how many labels the batches asked for. A script may hand any rows and any weights to
    `evaluate()`, through any collator, and the last number counts."""

    def __init__(self) -> None:
        self._labels: Any = None  # of the evaluation that goes on
        self._found: dict[str, str] = {}  # set → its rows
        self._known: dict[str, str] = {}  # fingerprint of a data set → its rows

    def see(self, batch: Any) -> None:
        """A batch was evaluated after the training. None: none was; what was seen is of no evaluation."""
        count = None
        with suppress(Exception):  # an odd batch
            count = (batch["labels"] != IGNORED_LABEL).sum()
        self._labels = count if self._labels is None or count is None else self._labels + count

    def look(self, logs: Mapping[str, object], data: Any, trained: bool | None = None) -> bool:
        """Whether an evaluation has just been logged. `data`: its data set, `trained`: whether its weights are those at
        the training's end; None if that is not known."""
        sets = [key.removesuffix(TIMED) for key in logs if key.startswith(PREFIX) and key.endswith(TIMED)]
        for name in sets:
            self._found[name] = "" if data is None else self._rows(data)
            self._found[f"labels_{name}"] = "" if self._labels is None else str(int(self._labels))
            self._found[f"weights_{name}"] = "" if trained is None else AS_TRAINED if trained else "others"
        self._labels = None
        return bool(sets)

    def tags(self) -> dict[str, str]:
        """As tags of the run."""
        return to_tags({"evaluated": {name: rows for name, rows in self._found.items() if rows}})

    def _rows(self, data: Any) -> str:
        """`12 rows, DIGEST`, or `streamed`. Read once: each evaluation makes a new data set of the same fingerprint."""
        mark = str(getattr(data, "_fingerprint", ""))
        if not mark or mark not in self._known:
            tokens: Mapping[str, str] = {}
            with suppress(Exception):  # an odd data set; its number of rows is still known
                tokens = tokens_in(data)
            which = f", {digest(' '.join(tokens.values()))}" if tokens else ""
            counts = rows_in("rows", data)
            self._known[mark] = f"{counts['rows']} rows{which}" if counts else "streamed"
        return self._known[mark]
