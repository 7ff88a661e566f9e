"""Where preference data comes from, by the name of its source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

from canary_mlflow.training.config import CanaryConfig, DataConfig
from canary_mlflow.training.datasets import embedded, hh_rlhf, hub, jsonl
from canary_mlflow.training.datasets.rows import Taken, digest, take
from canary_mlflow.training.errors import SetupError, first_line

if TYPE_CHECKING:
    from datasets import Dataset

TEXTS = ("prompt", "chosen", "rejected")
# Each module has SETTINGS, what it reads of `data`, check(cfg), which loads nothing heavy, and load(cfg) -> RawData.
SOURCES: dict[str, ModuleType] = {"embedded": embedded, "hh-rlhf": hh_rlhf, "jsonl": jsonl, "hub": hub}
OPTIONS = {"embedded": "preferences"}  # source → its option in conf/data, where that has another name


@dataclass(frozen=True, kw_only=True)
class DataStats:
    """What became of the data: rows used, and pairs left out by reason."""

    digest: str  # sha256 of the rows used, training then held-out
    train_rows: int
    eval_rows: int
    dropped_identical: int  # both answers are equal once cut to the token budget
    dropped_unusable: int  # no common prompt, an empty answer, or a chat that does not fit
    shortened: int  # rows that lost text to the token budget
    held_out_seen: int  # held-out rows that are training rows, too

    @property
    def note(self) -> str:
        """What a reader of the results should know about the data, in one sentence; "" if nothing."""
        if not self.held_out_seen:
            return ""
        return (
            f"{self.held_out_seen} of {self.eval_rows} held-out rows are training rows too: the evaluation also "
            "measures what was memorized"
        )


def check(config: CanaryConfig) -> None:
    """Raise SetupError unless the data can be trained on by the algorithm; loads neither torch nor datasets."""
    source = _source(config)
    _refuse_ignored(config.data, source.SETTINGS)
    source.check(config)


def _refuse_ignored(data: DataConfig, reads: tuple[str, ...]) -> None:
    """Raise SetupError for a setting that the source would ignore without a word, naming the sources that read it."""
    plain = DataConfig()
    for name in (field.name for field in fields(DataConfig) if field.name not in ("name", "source", *reads)):
        if (value := getattr(data, name)) != getattr(plain, name):
            able = [each for each, module in SOURCES.items() if name in module.SETTINGS]
            others = " or ".join(f"data={OPTIONS.get(each, each)}" for each in able)
            raise SetupError(f"data.{name}={value} has no effect with data={data.name}; expected {others} beside it")


def load(config: CanaryConfig, tokenizer: Any) -> tuple[Dataset, Dataset, DataStats]:
    """Return training and held-out rows (columns prompt, chosen, rejected) and their statistics.

    The columns hold texts or, for chats, lists of messages; data with prompts only have no answers. For a reward
    function, the other columns are kept too.

    The rows depend only on the configuration, never on the run's seed: all runs of a session train on the same set,
    each in its own order. A source with fewer rows than the tier asks for gives what it has.
    """
    raw = _source(config).load(config)
    budget = {"tokenizer": tokenizer, "max_prompt": max_prompt(config), "max_length": config.train.max_length}
    train = take(raw.train, config.tier.train_rows, **budget)
    held_out = take(raw.held_out, config.tier.eval_rows, **budget)
    if (long := train.too_long + held_out.too_long) and not (train.rows and held_out.rows):
        limit = f"{max_prompt(config)} tokens with its chat template, or whose answer in {config.train.max_length}"
        raise SetupError(
            f"data={config.data.name} leaves {len(train.rows)} training and {len(held_out.rows)} held-out rows after "
            f"dropping {long} chats whose last message does not fit in {limit}; expected at least one of each; raise "
            f"{'algo.max_prompt_length' if hasattr(config.algo, 'max_prompt_length') else 'train.max_length'}"
        )
    if not train.rows or not held_out.rows:
        raise SetupError(
            f"data={config.data.name} leaves {len(train.rows)} training and {len(held_out.rows)} held-out rows after "
            f"dropping {train.identical + held_out.identical} pairs that are equal within {config.train.max_length} "
            "tokens; expected at least one of each; raise train.max_length or give more data"
        )
    if config.algo.reads == "judged":
        _refuse_one_kind(config, train)
    return _dataset(train), _dataset(held_out), _statistics(train, held_out, raw.unusable)


def _refuse_one_kind(config: CanaryConfig, train: Taken) -> None:
    """Raise SetupError for answers that are all good, or all bad: nothing tells a model what makes the difference, and
    its loss falls all the same."""
    kinds = {kind for row in train.rows for kind, answer in (("good", row.chosen), ("bad", row.rejected)) if answer}
    if len(kinds) < 2:
        only, missing = *kinds, *({"good", "bad"} - kinds)
        raise SetupError(
            f"data={config.data.name} has only {only} answers in its {len(train.rows)} training rows; expected "
            f"{missing} ones too, as algo={config.algo.name} learns what tells them apart; give rows of both labels"
        )


def max_prompt(config: CanaryConfig) -> int:
    """Return how many prompt tokens are kept: PPO's own limit, else half of the sequence."""
    return int(getattr(config.algo, "max_prompt_length", None) or max(1, config.train.max_length // 2))


def as_completions(dataset: Dataset) -> Dataset:
    """Return the rows as prompt and completion (the chosen answer), as supervised fine-tuning takes them."""
    return dataset.remove_columns("rejected").rename_column("chosen", "completion")


def as_judged(dataset: Dataset, seed: int) -> Dataset:
    """Return both answers of each pair as separate rows (prompt, completion, label), in an order drawn from the
    seed."""
    from datasets import Dataset

    rows = [
        {**_without_answers(row), "completion": row[column], "label": column == "chosen"}
        for row in dataset
        for column in ("chosen", "rejected")
        if row[column]
    ]
    return Dataset.from_list(rows).shuffle(seed=seed)


def _without_answers(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("chosen", "rejected")}


def held_out_pairs(config: CanaryConfig, most: int) -> list[tuple[str, str]]:
    """Whole texts of held-out pairs, better and worse; none if the data are chats, or have only prompts."""
    rows = islice(_source(config).load(config).held_out, most)
    return [(row.prompt + row.chosen, row.prompt + row.rejected) for row in rows
            if not row.chat and row.chosen and row.rejected]  # fmt: skip


def _source(config: CanaryConfig) -> ModuleType:
    if config.data.source not in SOURCES:
        raise SetupError(f"data.source is {config.data.source!r}; expected one of {', '.join(SOURCES)}")
    return SOURCES[config.data.source]


def _dataset(taken: Taken) -> Dataset:
    """The rows as a table. Raises SetupError if a column holds several kinds of values."""
    import pyarrow as pa
    from datasets import Dataset

    answered = any(row.chosen or row.rejected for row in taken.rows)
    columns: dict[str, list[Any]] = {
        name: [_said(getattr(row, name), chat=row.chat) for row in taken.rows]
        for name in (TEXTS if answered else TEXTS[:1])
    }
    others = [json.loads(row.others or "{}") for row in taken.rows]
    for name in {key: None for one in others for key in one}:
        columns[name] = [one.get(name) for one in others]
    for name, values in columns.items():
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, ValueError) as error:
            raise SetupError(
                f"the data's column {name!r} holds values of several kinds ({first_line(error)}); expected one kind"
            ) from error
    return Dataset(pa.table(columns))


def _said(text: str, *, chat: bool) -> Any:
    """A text, or the messages that it stands for; None for an answer that a chat does not have."""
    return (json.loads(text) if text else None) if chat else text


def _statistics(train: Taken, held_out: Taken, unusable: int) -> DataStats:
    seen = set(train.rows)
    return DataStats(
        digest=digest(train.rows, held_out.rows),
        train_rows=len(train.rows),
        eval_rows=len(held_out.rows),
        dropped_identical=train.identical + held_out.identical,
        dropped_unusable=unusable + train.too_long + held_out.too_long,
        shortened=train.shortened + held_out.shortened,
        held_out_seen=len([row for row in held_out.rows if row in seen]),
    )
