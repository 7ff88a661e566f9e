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
from canary_mlflow.evals.drafts import Contents, Draft, GroupOf, facts, score_of
from canary_mlflow.evals.files import EvalFile, at, digest
from canary_mlflow.gates.model.items import Table

LONG = 200
"""Characters from which a text in a document may be the passage that several questions share."""
QUESTIONS = ("question", "query", "problem", "prompt")


def read(file: EvalFile, group_of: GroupOf) -> Contents | None:
    """The benchmarks of one run."""
    if not {"results", "configs", "n-shot"} <= file.value.keys():
        if {"doc_hash", "filter"} <= file.first.keys():
            raise UsageError(f"{file.path}: no results_*.json beside it; expected lm-eval's whole folder; copy both")
        return None
    run = Run(file, group_of)
    for task in run.said["configs"]:
        run.read(task)
    tables = [_grouped(draft.table(), run.passages) for draft in run.drafts.values()]
    return Contents([*tables, *run.aggregated()], run.files, run.loaded())


class Run:
    """One run of the harness while it is read. `said`: its results_*.json."""

    def __init__(self, file: EvalFile, group_of: GroupOf) -> None:
        self.said, self.files, self.group_of = file.value, [file], group_of
        self.stamp = file.path.name.partition(".json")[0].removeprefix("results_")
        self.drafts: dict[str, Draft] = {}
        self.of_task: dict[tuple[str, str, str], Draft] = {}
        self.passages: dict[str, Passages] = {}

    def samples(self, task: str) -> EvalFile | None:
        """The task's rows, also where somebody has left the beginning of its name out of the file's."""
        parts = [task, *(task[at.end() :] for at in re.finditer("_", task))]
        files = (self.files[0].beside(f"samples_{part}_{self.stamp}.jsonl") for part in parts)
        return next(filter(None, files), None)

    def read(self, task: str) -> None:
        """Take the rows of one task."""
        if (samples := self.samples(task)) is None:
            return
        self.files.append(samples)
        self.passages[task] = Passages()
        seen: dict[tuple[str, str], int] = {}
        for row in samples.rows():
            key = f"{row['doc_hash'][:16]}{row['target_hash'][:8]}" if "target_hash" in row else str(row["doc_id"])
            which = seen[key, row["filter"]] = seen.get((key, row["filter"]), 0) + 1
            key += f"#{which}" if which > 1 else ""  # the same document again
            self.passages[task].add(key, row.get("doc"))
            for metric in row["metrics"]:
                if score_of(row.get(metric)) is not None:
                    self.add(task, key, row, metric, samples)

    def add(self, task: str, key: str, row: Mapping[str, Any], metric: str, samples: EvalFile) -> None:
        """Take one score of a row."""
        draft, doc = self.draft(task, metric, row["filter"], samples), row.get("doc")
        draft.add(
            key if draft.source == task else f"{task} {key}",
            row[metric],
            row,
            prompt=str(row.get("prompt_hash", ""))[:24],
            answer=digest(row.get("resps")),  # of choices their likelihoods, which two models never have in common
            asked=next((doc[name] for name in QUESTIONS if name in doc), doc) if isinstance(doc, dict) else doc,
            said=at(row, "filtered_resps") and row["filtered_resps"][0],
        )

    def draft(self, task: str, metric: str, filtered: str, samples: EvalFile) -> Draft:
        """The table of this score, with what the task says of it."""
        if (found := self.of_task.get((task, metric, filtered))) is not None:
            return found
        home, date = self.home(task, f"{metric},{filtered}"), str(self.said.get("date", ""))
        name = _name(home, metric, filtered)
        better = self.higher(task, metric)
        draft = self.drafts.setdefault(name, Draft(name, home, samples.path, self.group_of(name), better, date))
        draft.facts |= self.facts(task, metric, filtered, f" of {task}" if home != task else "")
        self.of_task[task, metric, filtered] = draft
        return draft

    def higher(self, task: str, metric: str) -> bool:
        """Whether a higher score is better."""
        return at(self.said, "higher_is_better").get(task, {}).get(metric) is not False

    def home(self, task: str, key: str) -> str:
        """The largest group that the task is in and that has this score; the task itself if there is none."""
        above = {child: group for group, children in self.said.get("group_subtasks", {}).items() for child in children}
        home = here = task
        for _ in above:
            here = above.get(here, "")
            home = here if score_of((self.said.get("groups") or {}).get(here, {}).get(key)) is not None else home
        return home

    def facts(self, task: str, metric: str, filtered: str, of: str = "") -> dict[str, str]:
        """What must agree."""
        said, config = self.said, self.said["configs"][task]
        found = {
            "version": said["versions"].get(task),
            "few-shot": said["n-shot"].get(task),
            "generation": [config.get("generation_kwargs"), at(said, "config.gen_kwargs") or None],
            "metric": [one for one in config.get("metric_list") or [] if at(one, "metric") == metric],
            "filter": [one for one in config.get("filter_list") or [] if at(one, "name") == filtered],
            "chat template": said.get("chat_template_sha"),
            "system prompt": said.get("system_instruction_sha"),
        }
        return facts({f"{key}{of}": value for key, value in found.items()})

    def loaded(self) -> str:
        """The model's folder or name: to lm-eval 0.4.9 a part of a text, later a value."""
        told = at(self.said, "config.model_args")
        found = re.search(r"(?:^|,)pretrained=([^,]*)", told) if isinstance(told, str) else None
        return found[1] if found else str(at(told, "pretrained") or "")

    def aggregated(self) -> Iterator[Table]:
        """The scores that no item has."""
        for task in self.said["configs"]:
            scores = self.said["results"].get(task, {})
            for key, value in scores.items():
                metric, comma, filtered = key.partition(",")
                name, score = _name(task, metric, filtered), score_of(value)
                known = {name, _name(self.home(task, key), metric, filtered)} & self.drafts.keys()
                if comma and not metric.endswith("_stderr") and score is not None and not known:
                    yield Table(benchmark=name, source=task, aggregate=score, run=str(self.said.get("date", "")))


def _name(task: str, metric: str, filtered: str) -> str:
    return f"{task}/{metric}" + ("" if filtered == "none" else f",{filtered}")


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
