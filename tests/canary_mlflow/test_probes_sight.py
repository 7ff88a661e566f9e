"""No probe, no evidence: one that does not see ends the run; one that breaks, or a missing series, taints it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from probe_setting import setting
from tiny_trainers import Line, build
from transformers import TrainerCallback

from canary_mlflow import CanaryCallback
from canary_mlflow.errors import BlindProbe
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.sides import candidate_side
from canary_mlflow.tracking.describing import fingerprint
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.probes import parameters
from canary_mlflow.tracking.probes.finiteness import Finiteness
from canary_mlflow.tracking.probes.gradients import Gradients, norms_of
from canary_mlflow.tracking.reading.histories import read_runs


def recording(shared: Any) -> CanaryCallback:
    return CanaryCallback(tracking_uri=shared.uri, experiment="recorded", system_metrics=False)


def run_of(shared: Any, canary: CanaryCallback) -> tuple[Run, dict[str, str], str]:
    assert canary.run_id is not None
    (run,) = read_runs(shared.client, [canary.run_id])
    stored = shared.client.get_run(canary.run_id)
    return run, expanded(stored.data.tags), stored.info.status


def norm_that_hides(tensors: Any, order: float, dtype: Any = None) -> Any:
    return tuple(torch.linalg.vector_norm(tensor.nan_to_num(0, 0, 0), order, dtype=dtype) for tensor in tensors)


def row_closed_that_hides(self: Finiteness, row: dict[str, float]) -> None:
    row["nonfinite"] = 0.0


def fingerprints_that_hide(model: Any) -> dict[str, tuple[float]]:
    return {name: (float(one.detach().nan_to_num(0, 0, 0).sum()),) for name, one in model.named_parameters()}


BLINDERS = {
    "gradients": (torch, "_foreach_norm", norm_that_hides),
    "finiteness": (Finiteness, "row_closed", row_closed_that_hides),
    "parameters": (parameters, "fingerprints", fingerprints_that_hide),
}


@pytest.mark.parametrize("probe", BLINDERS)
def test_a_probe_that_does_not_see_what_it_is_shown_ends_the_run(
    probe: str, shared: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*BLINDERS[probe])
    canary = recording(shared)
    trainer = build("trainer", "", place, [canary])
    with pytest.raises(BlindProbe, match=f"probe {probe} is blind: nan"):
        trainer.train()
    assert trainer.state.global_step == 0
    run, _, status = run_of(shared, canary)
    assert (run.failure, run.completed, status) == ("error", False, "FAILED")
    assert f"probe {probe} is blind" in run.failure_reason


def test_an_essential_probe_that_breaks_half_way_leaves_no_evidence(
    shared: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Gradients) -> None:
        raise RuntimeError("a sharded tensor of a new kind")

    canary = recording(shared)
    trainer = build("trainer", "", place, [canary])
    monkeypatch.setattr(Gradients, "before_optimizer", broken)
    trainer.train()
    run, tags, status = run_of(shared, canary)
    assert (run.failure, status) == ("error", "FAILED")
    assert "probe gradients broke" in run.failure_reason
    assert "a sharded tensor of a new kind" in tags["canary.troubles"]
    assert candidate_side([run]).evidence == ()


def run_without_entropy(shared: Any, tiny: str, place: Path) -> tuple[Run, dict[str, str], str]:
    canary = recording(shared)
    trainer = build("sft", tiny, place, [canary], max_steps=2)
    log = trainer.log

    def without_entropy(logs: dict[str, float], *given: Any) -> None:
        trainer._metrics["train"].pop("entropy", None)
        log(logs, *given)

    trainer.log = without_entropy
    trainer.train()
    return run_of(shared, canary)


def test_a_required_series_that_nobody_logged_leaves_no_evidence(shared: Any, tiny: str, place: Path) -> None:
    run, _, status = run_without_entropy(shared, tiny, place)
    assert (run.failure, status) == ("error", "FAILED")
    assert "no value of entropy" in run.failure_reason
    assert candidate_side([run]).evidence == ()


def test_a_release_of_trl_that_never_logged_it_leaves_evidence(
    shared: Any, tiny: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "packages", lambda: {"trl": "0.18.2"})
    run, _, status = run_without_entropy(shared, tiny, place)
    assert (run.failure, status) == ("", "FINISHED")
    assert candidate_side([run]).evidence == (run,)


class Spoil(TrainerCallback):
    """Writes `value` into the gradient of step 3, after the trainer clipped and before anybody looks."""

    def __init__(self, value: float) -> None:
        self.value = value

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step == 2:
            model.w.grad[1] = self.value


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_bad_tensor_is_named_with_its_step(value: float, shared: Any, place: Path) -> None:
    canary = recording(shared)
    build("trainer", "", place, [Spoil(value), canary], max_steps=4).train()
    _, tags, _ = run_of(shared, canary)
    assert tags["canary.first_nonfinite"] == "step 3: gradient of w"
    assert [canary.rows[step]["nonfinite"] > 0 for step in (1, 2, 3, 4)] == [False, False, True, True]
    assert math.isfinite(canary.rows[3]["loss"])  # nothing that is logged shows it at step 3
    assert tags["canary.nan_steps"] == "2"


def test_parameters_are_looked_at_before_the_optimizer_moves() -> None:
    model = Line()
    probe = Gradients()
    probe.start(setting(model=model))
    assert probe.blind() == ""
    torch.nn.init.constant_(model.w, math.inf)
    probe.before_optimizer()
    row: dict[str, float] = {}
    probe.step_ended(row)
    assert row == {"nonfinite": 1.0}
    assert probe.first == "step 1: parameter w"


def test_a_parameter_that_is_not_finite_is_seen_within_eight_steps_even_without_a_gradient() -> None:
    model = Line()
    probe = Gradients()
    probe.start(setting(model=model))
    seen = []
    for step in range(1, 10):
        if step == 3:
            torch.nn.init.constant_(model.w, math.nan)
        probe.before_optimizer()
        row: dict[str, float] = {}
        probe.step_ended(row)
        seen.append(row.get("nonfinite"))
    assert seen == [0.0, *[None] * 7, 1.0]
    assert probe.first == "step 9: parameter w"


def test_each_group_of_layers_has_its_norm_every_eighth_step() -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({
        "tokens": torch.nn.Embedding(5, 2),
        "layers": torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False) for _ in range(8)),
        "out": torch.nn.Linear(2, 5, bias=False),
    })  # fmt: skip
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1.0)
    probe = Gradients()
    probe.start(setting(model=model))
    rows: list[dict[str, float]] = [{} for _ in range(12)]
    for row in rows:
        probe.before_optimizer()
        probe.step_ended(row)
    found = {name.removeprefix("grad_norm_"): one for name, one in rows[0].items() if name.startswith("grad_norm_")}
    squares = {"embeddings": 10, "early": 2 * 4, "middle": 4 * 4, "late": 2 * 4, "head": 10}
    assert found == pytest.approx({name: one**0.5 for name, one in squares.items()})
    assert rows[0]["grad_norm"] ** 2 == pytest.approx(sum(squares.values()))
    assert [number for number, row in enumerate(rows) if "grad_norm_head" in row] == [0, 8]


def test_norms_of_tensors_of_every_kind_keep_their_order_and_do_not_overflow() -> None:
    tensors = [
        torch.full((300,), 300.0, dtype=torch.float16),  # its norm squared is beyond float16
        torch.tensor([3.0, 4.0]),
        torch.full((4,), 1e30, dtype=torch.float64),
        torch.tensor([[6.0], [8.0]], dtype=torch.bfloat16),
    ]
    assert norms_of(tensors).tolist() == pytest.approx([300 * 300**0.5, 5.0, 2e30, 10.0])
