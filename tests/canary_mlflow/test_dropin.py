"""One line in a plain script of every trainer: the run that our own canaries get."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset
from peft import LoraConfig
from tiny_ppo import tiny_trainer
from tiny_trainers import BUILDERS, PAIRS, arguments, build, length_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from canary_mlflow import CanaryCallback
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.sides import candidate_side
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.describing.schema import required
from canary_mlflow.tracking.reading.histories import read_runs

STEPS = 4
OPTIONS: dict[str, dict[str, Any]] = {"kto": {"per_device_train_batch_size": 8}}


def recorded_run(shared: Any, canary: CanaryCallback) -> tuple[Run, dict[str, str]]:
    assert canary.run_id is not None
    (run,) = read_runs(shared.client, [canary.run_id])
    return run, expanded(shared.client.get_run(canary.run_id).data.tags)


@pytest.mark.parametrize("kind", [*BUILDERS, "ppo"])
def test_a_plain_script_of_every_trainer_gives_a_whole_run(kind: str, shared: Any, tiny: str, place: Path) -> None:
    canary = CanaryCallback(tracking_uri=shared.uri, experiment="recorded")
    if kind == "ppo":
        trainer = tiny_trainer(place, callbacks=[canary])
    else:
        trainer = build(kind, tiny, place, [canary], max_steps=STEPS, **OPTIONS.get(kind, {}))
    trainer.train()
    run, tags = recorded_run(shared, canary)
    assert (run.completed, run.failure, run.failure_reason) == (True, "", "")
    assert run.nan_steps == run.inf_steps == 0
    assert shared.client.get_run(run.run_id).info.status == "FINISHED"
    assert set(required(kind, vars(trainer.args))) <= run.series.keys()
    assert not tags.get("canary.troubles")

    # What every trainer's step is made of.
    steps = run.series["step_time"]
    for name in ("compute_time", "time_forward", "time_backward", "time_optimizer", "clipped", "nonfinite"):
        assert run.series[name].steps.tolist() == steps.steps.tolist(), name
    assert (run.series["compute_time"].values <= steps.values).all()
    parts = sum(run.series[name].values for name in ("time_forward", "time_backward", "time_optimizer"))
    assert (parts <= run.series["compute_time"].values).all()
    assert ("data_wait" in run.series) == (kind != "ppo")
    if kind != "ppo":
        whole = run.series["data_wait"].values + run.series["compute_time"].values
        assert (whole <= steps.values * 1.01 + 1e-3).all()
    if kind in ("grpo", "rloo", "ppo"):
        assert {"time_generate", "time_reward", "time_reference", "truncated_share"} <= run.series.keys()
    if kind in ("grpo", "rloo"):  # which sum its reward is
        assert run.facts["rewards.length_of"] == "1.0"
        assert "trl/rewards/length_of/mean" in run.series
    if kind in ("dpo", "kto"):
        assert "time_reference" in run.series
    if kind == "kto":
        count = len(trainer.train_dataset)
        assert run.facts["data.labels.label.completion_ids"].startswith(f"{count // 2} of {count} rows are not 0, ")

    # What two runs must share, the artifacts, and that a gate takes the run for evidence.
    assert run.workload["algo"] == kind
    assert run.hardware["backend"] == "cpu"
    folder = Path(shared.client.get_run(run.run_id).info.artifact_uri)
    assert json.loads((folder / "metrics.json").read_text())["status"] == "completed"
    assert candidate_side([run]).evidence == (run,)

    # Invariants hold, where there are any.
    assert tags["canary.invariants"] == (
        "" if kind in ("reward", "trainer") and not tags["canary.invariants"] else "ok"
    )
    expected = {"dpo": "reference start", "grpo": "reference start", "ppo": "first epoch"}.get(kind, "")
    assert expected in tags["canary.invariants_checked"]


@pytest.mark.parametrize("adapter", [False, True], ids=["model", "adapters off"])
def test_the_references_time_is_that_of_its_passes_alone(adapter: bool, place: Path) -> None:
    canary = CanaryCallback(sinks=(), system_metrics=False)
    lora = LoraConfig(r=2, target_modules=["query_key_value"], task_type="CAUSAL_LM") if adapter else None
    tiny_trainer(place, callbacks=[canary], peft_config=lora).train()
    rows = [row for row in canary.rows.values() if "time_score" in row]
    assert len(rows) == 2
    for row in rows:
        assert 0 < row["time_reference"] < row["time_score"]  # which it is a part of


def test_dpo_says_how_far_it_is_from_its_reference(shared: Any, tiny: str, place: Path) -> None:
    canary = CanaryCallback(tracking_uri=shared.uri, experiment="recorded")
    build("dpo", tiny, place, [canary], max_steps=STEPS, beta=0.2).train()
    first, last = canary.rows[1], canary.rows[STEPS]
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["implied_kl"] == pytest.approx(0, abs=1e-4)
    assert last["implied_kl"] == pytest.approx(-(last["chosen_reward"] + last["rejected_reward"]) / 0.4)


@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_a_class_of_arguments_of_ones_own_is_what_trls_above_it_is(
    kind: str, shared: Any, tiny: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`class Arguments(GRPOConfig)`: it is judged by its rewards, not by a loss that tells nothing."""
    usual = f"{kind.upper()}Config"
    own = dataclass(type("Arguments", (getattr(trl, usual),), {"__module__": __name__}))
    monkeypatch.setattr(trl, usual, own)
    canary = CanaryCallback(tracking_uri=shared.uri, experiment="recorded")
    build(kind, tiny, place, [canary], max_steps=2).train()
    _, tags = recorded_run(shared, canary)
    assert tags["canary.algo"] == tags["canary.workload.algo"] == kind


def test_who_compares_answers_of_its_own_learns_from_their_scores(shared: Any, tiny: str, place: Path) -> None:
    """TRL's online DPO: its loss stays near ln 2, and says nothing of what was learned."""
    online = pytest.importorskip("trl.experimental.online_dpo")
    canary = CanaryCallback(tracking_uri=shared.uri, experiment="recorded")
    usual = {"max_steps": 8, "max_new_tokens": 8, "activation_checkpointing": False}
    online.OnlineDPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny),
        reward_funcs=length_of,
        args=arguments(online.OnlineDPOConfig, place, **usual),
        processing_class=AutoTokenizer.from_pretrained(tiny, padding_side="left"),
        train_dataset=Dataset.from_list([{"prompt": pair["prompt"]} for pair in PAIRS]),
        callbacks=[canary],
    ).train()
    run, tags = recorded_run(shared, canary)
    assert tags["canary.algo"] == "onlinedpo"
    assert "score_mean" in tags["canary.learned_reason"]
    assert len(run.series["score_mean"].values) == 8


def test_it_joins_the_active_run(shared: Any, tiny: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", shared.uri)
    mlflow.set_tracking_uri(shared.uri)
    try:
        with mlflow.start_run(experiment_id=shared.experiment) as active:
            canary = CanaryCallback()
            build("trainer", tiny, place, [canary], max_steps=STEPS).train()
            assert canary.run_id == active.info.run_id
            assert shared.client.get_run(canary.run_id).info.status == "RUNNING"
        assert shared.client.get_run(canary.run_id).info.status == "FINISHED"
    finally:
        mlflow.set_tracking_uri(None)
