"""Canary sessions on a real card, by the commands that users type. Elsewhere every test here is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from workplace import Workplace

from canary_mlflow.gates import Run
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.stores.store import experiment_id, prepare_store

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")

ALGORITHMS = ("sft", "dpo", "kto", "reward", "ppo", "grpo", "rloo")


def train(place: Workplace, *words: str) -> tuple[int, str]:
    process = place.start("-m", "training", "hardware=cuda", *words)
    out, err = process.communicate(timeout=280)
    print(out, err[-3000:])
    return process.returncode, out + err


def runs(place: Workplace) -> list[Run]:
    client = prepare_store(place.uri)
    found = client.search_runs(
        [experiment_id(client, "canary")], "tags.`canary.role` = 'run'", order_by=["start_time"], max_results=100
    )
    return read_runs(client, [one.info.run_id for one in found])


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_champion_is_made_unchanged_code_is_not_blocked_and_a_fault_is(algo: str, workplace: Workplace) -> None:
    assert train(workplace, f"algo={algo}")[0] == 0
    assert {run.hardware["backend"] for run in runs(workplace)} == {"cuda"}
    assert train(workplace, f"algo={algo}")[0] in (0, 3)
    code, said = train(workplace, f"algo={algo}", "fault=nan_batch")
    assert code == 1
    assert "nonfinite" in said


@pytest.mark.parametrize("algo", ["sft", "ppo"])
def test_a_seed_gives_the_same_losses_with_deterministic_algorithms(algo: str, tmp_path: Path) -> None:
    """torch's switch, and what it promises: the same digits."""
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        place = Workplace(folder=tmp_path / name)
        assert train(place, f"algo={algo}", "hardware.deterministic=true", "repeats=1", "train.max_steps=30")[0] in (
            0,
            3,
        )
        found.append([list(run.series["loss"].values) for run in runs(place)])
    assert found[0] == found[1]


@pytest.mark.parametrize("words", [("memory=saving",), ("adapter=lora", "quantization=nf4"), ("tier=facts",)])
def test_what_saves_memory_and_what_compares_exactly_end_with_a_verdict(
    words: tuple[str, ...], workplace: Workplace
) -> None:
    for expected in ((0,), (0, 3)):
        assert train(workplace, "algo=sft", *words)[0] in expected
