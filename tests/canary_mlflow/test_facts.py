"""What a run exactly was, through a script of one's own: recorded, shown, decided by, and accepted by somebody."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from mlflow import MlflowClient
from tiny_trainers import sft

from canary_mlflow import CanaryCallback, session
from canary_mlflow.cli import canary
from canary_mlflow.tracking.fact_tags import LONGEST_TAG, facts_in, to_tags
from canary_mlflow.tracking.histories import session_runs

POLICY = """
base: smoke
min_steps: 1
warmup_steps: 0
hard: {learned: false, divergence: false, watch: false}
"""  # three steps say nothing else
Change = Callable[[Any], None]


def said(*words: str, code: int = 0) -> Result:
    """What a command answers, and that it ends with this code."""
    result = CliRunner().invoke(canary, list(words), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def trained(tiny: str, change: Change = lambda trainer: None, **own: Any) -> str:
    """A session of two seeds, three steps each; `change` is in the script's code, `own` in its arguments."""
    with session("mine") as opened:
        for seed in range(2):
            trainer = sft(tiny, Path.cwd(), [CanaryCallback(watch=None)], seed=seed, max_steps=3, **own)
            change(trainer)
            trainer.train()
    return opened.session_id


def freeze(trainer: Any) -> None:
    trainer.model.get_input_embeddings().requires_grad_(False)


def drop(trainer: Any) -> None:
    for module in trainer.model.modules():
        if type(module).__name__ == "Dropout":
            module.p = 0.5


@pytest.fixture(scope="module")
def told(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A champion, the same again, and two scripts that were changed where no configuration tells of it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        patch.chdir(tmp_path_factory.mktemp("facts"))
        Path("mine.yaml").write_text(POLICY)
        made = {"first": trained(tiny), "again": trained(tiny), "frozen": trained(tiny, freeze)}
        made["dropout"] = trained(tiny, drop)
        made["meant"] = trained(tiny, learning_rate=0.01, max_grad_norm=0.1)
        said("register", made["first"])
        said("gate", "mine", "1", "--policy", "mine.yaml")
        yield made


def test_a_script_records_what_it_exactly_was(told: Any) -> None:
    (run, other) = session_runs(MlflowClient(), told["first"])
    assert run.facts["parameters.trainable"] == run.facts["parameters.total"] == "14080"
    assert run.facts["data.tokens.input_ids"].startswith("936 in 80 rows, longest 22, ")
    assert run.facts["training.optimizer"] == "AdamW"
    assert run.facts["training.scheduler"].endswith("get_linear_schedule_with_warmup_lr_lambda")
    assert run.facts["arguments.learning_rate"] == "0.003"
    assert "warmup_steps" in " ".join(run.facts[key] for key in run.facts if key.startswith("defaults."))
    assert {"model.attention", "tokenizer.digest", "tokenizer.chat_template", "first.labels"} <= run.facts.keys()
    alike = {key for key in run.facts if run.facts[key] == other.facts[key]}
    assert run.facts.keys() - alike == {"first.tokens", "first.labels"}  # of another seed


def test_diff_says_what_is_other_and_how_it_ends_by(told: Any) -> None:
    assert "Equal: facts, configuration," in said("diff", told["first"], told["again"]).stdout
    shown = said("diff", told["first"], told["frozen"], code=1).stdout
    assert "    trainable parameters 14080 → " in shown
    found = json.loads(said("diff", told["first"], told["dropout"], "--json", code=1).stdout)
    keys = [one["key"] for one in found["differences"] if one["group"] == "facts"]
    assert (keys[0], "model.dropout" in keys, found["obstacle"], found["exit_code"]) == ("first.loss.1", True, "", 1)
    meant = said("diff", told["first"], told["meant"], code=1).stdout
    assert "May come from: learning_rate 0.003 → 0.01" in meant
    assert "first.loss.1" not in meant
    assert "found" in said("diff", told["first"], "0" * 32, code=2).stderr


def test_facts_of_other_work_and_facts_that_nobody_recorded_do_not_compare(told: Any, tiny: str) -> None:
    longer = trained(tiny, per_device_train_batch_size=2)
    assert (
        "Not comparable: the workload is not the same (batch_size)"
        in said("diff", told["first"], longer, code=3).stdout
    )
    for run in session_runs(MlflowClient(), told["again"]):
        for key in [key for key in MlflowClient().get_run(run.run_id).data.tags if key.startswith("canary.facts")]:
            MlflowClient().delete_tag(run.run_id, key)
    shown = said("diff", told["first"], told["again"], code=3).stdout
    assert "Not comparable: the exact facts of both sides are not recorded." in shown
    assert (
        "Not recorded of both: facts" in said("compare", told["first"], told["again"], "--policy", "mine.yaml").stdout
    )


def forged(copy: Path) -> tuple[str, str]:
    """The store with another acceptance than was signed, and other facts than a verdict was bound to."""
    with sqlite3.connect("mlflow.db") as whole, sqlite3.connect(copy) as made:
        whole.backup(made)
        for (name,) in made.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            made.execute(f"DROP TRIGGER {name}")
        made.execute("UPDATE canary_ledger SET body = replace(body, 'frozen', 'forged') WHERE kind = 'facts'")
        made.execute("UPDATE tags SET value = replace(value, '14080', '14081') WHERE key = 'canary.facts.parameters'")
    return "--tracking-uri", f"sqlite:///{copy}"


def test_a_fact_blocks_until_somebody_accepts_it(told: Any, tmp_path: Path) -> None:
    said("register", told["frozen"])
    gate = ("gate", "mine", "2", "--policy", "mine.yaml")
    accept = ("accept-facts", "mine", "2", "--policy", "mine.yaml", "--reason")
    blocked = said(*gate, code=1).stdout
    assert "Facts: configuration, data and seeds are the same, but trainable parameters 14080 → " in blocked
    assert "Differs exactly: trainable parameters 14080 → " in blocked
    assert 'canary accept-facts mine 2 --reason "…", then gate it again' in " ".join(blocked.split())
    json_report = json.loads(said(*gate, "--json", code=1).stdout)
    assert json_report["exact"].startswith("Differs exactly: ")
    assert "found an empty text" in said(*accept, " ", code=2).stderr
    assert "trainable parameters" in said(*accept, "embeddings are frozen on purpose").stdout
    full = CliRunner().invoke(canary, [*gate, "--full"]).stdout
    assert "Differs exactly: trainable parameters" in full
    assert "BLOCK  mine" not in full
    tags = MlflowClient().get_model_version("mine", "2").tags
    assert tags["canary.facts_accepted"] == "embeddings are frozen on purpose"
    assert tags["canary.facts_accepted_by"]
    row = said("audit", "log", "mine").stdout
    assert "facts     facts accepted mine version 2" in row
    assert "embeddings are frozen on purpose" in row
    assert "rows hold" in said("audit", "verify").stdout
    uri = forged(tmp_path / "mlflow.db")  # an acceptance that nobody trusted has signed is none
    assert "trainable parameters" in said(*gate, "--dry-run", *uri, code=1).stdout
    assert "the metrics or facts of run" in said("audit", "verify", *uri, code=1).stdout
    said("register", told["dropout"])
    assert "first loss" in said("gate", "mine", "3", "--policy", "mine.yaml", code=1).stdout  # another difference


def test_a_change_of_the_configuration_is_shown_and_blocks_nothing(told: Any) -> None:
    shown = said("compare", told["first"], told["meant"], "--policy", "mine.yaml", "--full").stdout
    assert "Differs exactly: " in shown
    assert "BLOCK" not in shown


def test_tags_hold_what_fits_and_read_what_they_can() -> None:
    tags = to_tags({"arguments": {f"key{at}": "x" * 200 for at in range(100)} | {"long": "y" * 1000}})
    assert len(tags["canary.facts.arguments"]) <= LONGEST_TAG
    found = facts_in({**tags, "canary.facts.odd": "no JSON", "canary.facts.list": "[1]"})
    assert 20 < len(found) < 100
    assert facts_in({"canary.data.train_rows": "48"}) == {}
