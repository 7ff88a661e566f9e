"""Inspect: a log of one task, as .json or as .eval, a zip whose summaries say all that decides."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.evals.drafts import Contents, Draft, GroupOf, facts
from canary_mlflow.evals.files import EvalFile, at, digest
from canary_mlflow.evals.zips import member
from canary_mlflow.files.documents import parse_json
from canary_mlflow.files.source import TooMuch, open_regular

LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
SHOWN = 5120
"""Characters of a text to which Inspect cuts it in its summaries."""


def read(file: EvalFile, group_of: GroupOf) -> Contents | None:
    """The benchmarks of one log, one for each scorer and each key of its scores."""
    head = _of_zip(file, "header.json") if file.kind == "eval" else file.value
    spec = head.get("eval")
    if not isinstance(spec, dict) or "task" not in spec:
        return None
    samples = _of_zip(file, "summaries.json") if file.kind == "eval" else head.get("samples") or []
    samples = [one for one in samples if isinstance(one, dict) and "id" in one]
    scored = {name: None for one in samples for name in _scores(one)}
    declared = [str(one.get("name")).rpartition("/")[2] for one in spec.get("scorers") or [] if isinstance(one, dict)]
    drafts = []
    for name in scored or declared or ["score"]:
        benchmark = f"{spec['task']}/{name}"
        group = group_of(benchmark) or _cluster(head)
        draft = Draft(benchmark, str(spec["task"]), file.path, group, run=str(spec.get("eval_id", "")))
        draft.facts = _facts(head, spec)
        for one in samples:
            asked, given = _shown(one.get("input")), at(one, f"scores.{name.partition('.')[0]}.answer")
            draft.add(
                str(one["id"]),
                None if one.get("error") else _scores(one).get(name),
                one,
                prompt=digest(asked, _shown(one.get("target"))),
                answer="" if given is None else digest(given),
                asked=asked,
                said=at(one, "output.completion") or given,
            )
        drafts.append(draft.table())
    return Contents(drafts, [file])


def _facts(head: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, str]:
    steps = at(head, "plan.steps") or []
    return facts(
        {
            "version": spec.get("task_version"),
            "scorer": spec.get("scorers"),
            "grader": spec.get("model_roles"),
            "solver": [[at(step, "solver"), at(step, "params")] for step in steps],
            "generation": spec.get("model_generate_config"),
            "epochs": at(spec, "config.epochs"),
            "limit": at(spec, "config.limit"),
        }
    )


def _cluster(head: Mapping[str, Any]) -> str | None:
    """The metadata by which the task's own standard error is clustered."""
    scores = at(head, "results.scores") or []
    found = [at(metric, "params.cluster") for one in scores for metric in (one.get("metrics") or {}).values()]
    return next((f"metadata.{name}" for name in found if name), None)


def _scores(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The sample's values by scorer, or by scorer and key."""
    return dict(_values(sample.get("scores") or {}))


def _values(scores: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, score in scores.items():
        value = at(score, "value")
        for key, one in value.items() if isinstance(value, dict) else [("", value)]:
            yield f"{name}.{key}" if key else name, LETTERS.get(one, one) if isinstance(one, str) else one


def _shown(given: Any) -> Any:
    """An input or a target as both kinds of log tell it: texts alone, cut as in summaries."""
    if isinstance(given, str):
        return given[:SHOWN]
    if isinstance(given, list):
        return [_shown(one) for one in given]
    if isinstance(given, dict):
        content = given.get("content", given.get("text"))
        return [given.get("role", ""), _shown(content)] if content is not None else "(other)"
    return given


def _of_zip(file: EvalFile, name: str) -> Any:
    try:
        with open_regular(file.path) as raw, zipfile.ZipFile(raw) as box:
            return parse_json(member(box, raw, name))
    except TooMuch as error:
        raise UsageError(f"{file.path}: {name} {error}") from None
    except NotImplementedError:
        raise UsageError(
            f"{file.path}: packed with zstd, which this Python does not read; expected zstandard "
            "(pip install 'canary-mlflow[evals]'), or JSON (inspect log convert --to json)"
        ) from None
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, EOFError) as error:
        raise UsageError(f"{file.path}: no readable log ({error}); expected a finished one; copy it again") from None
