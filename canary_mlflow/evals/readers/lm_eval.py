"""lm-eval: results_*.json beside samples_TASK_*.jsonl, which has a row for each document and filter.

Subtasks of a group that has a score of its own (mmlu) are one benchmark. A metric that is no number in a row is made
over the whole corpus (f1, bleu, perplexity): such a benchmark is aggregated only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.evals.drafts import Draft, GroupOf, Reading, facts, score_of
from canary_mlflow.evals.files import EvalFile, at, digest
from canary_mlflow.gates.model.items import Aggregate, Table

LONG = 200
"""Characters from which a text in a document may be the passage that several questions share."""
QUESTIONS = ("question", "query", "problem", "prompt")


def read(file: EvalFile, group_of: GroupOf) -> Reading | None:
    """The benchmarks of one run."""
    said = file.value
    if not {"results", "configs", "n-shot"} <= said.keys():
        if {"doc_hash", "filter"} <= file.first.keys():
            raise UsageError(f"{file.path}: no results_*.json beside it; expected lm-eval's whole folder; copy both")
        return None
    files, drafts = [file], dict[str, Draft]()
    stamp = file.path.name.partition(".json")[0].removeprefix("results_")
    passages = dict[str, Passages]()
    for task, config in said["configs"].items():
        if (samples := _samples(file, task, stamp)) is None:
            continue
        files.append(samples)
        passages[task] = found = Passages()
        seen: dict[tuple[str, str], int] = {}
        for row in samples.rows():
            key = f"{row['doc_hash'][:16]}{row['target_hash'][:8]}" if "target_hash" in row else str(row["doc_id"])
            which = seen[key, row["filter"]] = seen.get((key, row["filter"]), 0) + 1
            key += f"#{which}" if which > 1 else ""  # the same document again
            found.add(key, row.get("doc"))
            for metric in (metric for metric in row["metrics"] if score_of(row.get(metric)) is not None):
                draft = _draft(said, task, metric, row["filter"], drafts, samples, group_of)
                draft.facts |= _facts(said, task, config, metric, row["filter"], alone=draft.source == task)
                _add(draft, key if draft.source == task else f"{task} {key}", row, metric)
    tables = [_grouped(draft.table(), passages) for draft in drafts.values()]
    return Reading([*tables, *_aggregated(said, {table.benchmark for table in tables})], files)


def _samples(file: EvalFile, task: str, stamp: str) -> EvalFile | None:
    """The task's rows, also where somebody has left the beginning of its name out of the file's."""
    parts = [task, *(task[at.end() :] for at in re.finditer("_", task))]
    return next((found for part in parts if (found := file.beside(f"samples_{part}_{stamp}.jsonl"))), None)


def _name(task: str, metric: str, filtered: str) -> str:
    return f"{task}/{metric}" + ("" if filtered == "none" else f",{filtered}")


def _draft(
    said: Mapping[str, Any],
    task: str,
    metric: str,
    filtered: str,
    drafts: dict[str, Draft],
    file: EvalFile,
    group_of: GroupOf,
) -> Draft:
    home = _home(said, task, f"{metric},{filtered}")
    name = _name(home, metric, filtered)
    if name not in drafts:
        drafts[name] = Draft(name, home, file.path, group_of(name), run=str(said.get("date", "")))
        drafts[name].higher = at(said, "higher_is_better").get(task, {}).get(metric) is not False
    return drafts[name]


def _home(said: Mapping[str, Any], task: str, key: str) -> str:
    """The largest group that the task is in and that has this score; the task itself if there is none."""
    above = {child: group for group, children in said.get("group_subtasks", {}).items() for child in children}
    home = here = task
    for _ in above:
        here = above.get(here, "")
        home = here if score_of((said.get("groups") or {}).get(here, {}).get(key)) is not None else home
    return home


def _facts(
    said: Mapping[str, Any], task: str, config: Mapping[str, Any], metric: str, filtered: str, *, alone: bool
) -> dict[str, str]:
    found = {
        "version": said["versions"].get(task),
        "few-shot": said["n-shot"].get(task),
        "generation": [config.get("generation_kwargs"), at(said, "config.gen_kwargs") or None],
        "metric": [one for one in config.get("metric_list") or [] if at(one, "metric") == metric],
        "filter": [one for one in config.get("filter_list") or [] if at(one, "name") == filtered],
        "chat template": said.get("chat_template_sha"),
        "system prompt": said.get("system_instruction_sha"),
    }
    return facts({key if alone else f"{key} of {task}": value for key, value in found.items()})


def _add(draft: Draft, key: str, row: Mapping[str, Any], metric: str) -> None:
    doc = row.get("doc")
    draft.add(
        key,
        row[metric],
        row,
        prompt=str(row.get("prompt_hash", ""))[:24],
        answer=digest(row.get("resps")),  # of choices their likelihoods, which two models never have in common
        asked=next((doc[name] for name in QUESTIONS if name in doc), doc) if isinstance(doc, dict) else doc,
        said=at(row, "filtered_resps") and row["filtered_resps"][0],
    )


class Passages:
    """The long texts of a task's documents, by their names."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[str, str]] = {}

    def add(self, key: str, doc: object) -> None:
        """Take the texts of one document."""
        for name, value in doc.items() if isinstance(doc, dict) else ():
            if isinstance(value, str) and len(value) >= LONG:
                self.texts.setdefault(name, {})[key] = digest(value)

    def shared(self, keys: Mapping[str, object]) -> tuple[str, dict[str, str]]:
        """The name of the text that some of the documents share, and its digest in each; of several, the one with the
        most values."""
        found = [("", dict[str, str]())]
        for name, of_key in self.texts.items():
            if of_key.keys() >= keys.keys() and 1 < len(set(of_key.values())) < len(of_key):
                found.append((name, of_key))
        return max(found, key=lambda one: len(set(one[1].values())))


def _grouped(table: Table, passages: Mapping[str, Passages]) -> Table:
    """The table with its items grouped by a passage that they share, unless a group was asked for."""
    if table.grouped or table.source not in passages:
        return table
    name, groups = passages[table.source].shared(table.items)
    if not name:
        return table
    items = {key: replace(item, group=groups[key]) for key, item in table.items.items()}
    return replace(table, items=items, grouped=f"doc.{name}")


def _aggregated(said: Mapping[str, Any], known: set[str]) -> Iterator[Table]:
    """The scores that no item has."""
    for task in said["configs"]:
        for key, value in said["results"].get(task, {}).items():
            metric, comma, filtered = key.partition(",")
            name, score = _name(task, metric, filtered), score_of(value)
            if not comma or metric.endswith("_stderr") or score is None:
                continue
            if {name, _name(_home(said, task, key), metric, filtered)}.isdisjoint(known):
                config, higher = said["configs"][task], at(said, "higher_is_better").get(task, {}).get(metric)
                stderr = score_of(said["results"][task].get(f"{metric}_stderr,{filtered}"))
                yield Table(
                    benchmark=name,
                    source=task,
                    higher=higher is not False,
                    facts=_facts(said, task, config, metric, filtered, alone=True),
                    aggregate=Aggregate(score=score, stderr=stderr),
                    run=str(said.get("date", "")),
                )
