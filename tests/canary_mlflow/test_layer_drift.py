"""How far each layer moved: by real trainings of a user's own script, recorded, shown, and compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow import MlflowClient
from peft import LoraConfig
from probe_setting import setting
from reported import Page, canary
from tiny_trainers import build, sft

from canary_mlflow import CanaryCallback
from canary_mlflow.gates.measured import by_layer
from canary_mlflow.gates.root_causes import root_causes
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.describing.fact_tags import facts_in
from canary_mlflow.tracking.probes import parameters
from canary_mlflow.tracking.probes.parameters import LayerDrift, Parameters, layer_of
from canary_mlflow.tracking.reading.histories import read_runs

LAYERS = ["gpt_neox.embed_in", "gpt_neox.final_layer_norm", "gpt_neox.layers.0", "gpt_neox.layers.1", "lm_head"]
Change = Callable[[Any], None]


def unchanged(trainer: Any) -> None:
    """The script as it was."""


def frozen(trainer: Any) -> None:
    trainer.model.gpt_neox.layers[1].requires_grad_(False)


def detached(trainer: Any) -> None:
    """What trains by all that is recorded before the first step, and gets no gradient."""
    trainer.model.gpt_neox.embed_in.register_forward_hook(lambda module, inputs, output: output.detach())


def faster(trainer: Any) -> None:
    """One layer's learning rate is 20 times as high."""
    layer = list(trainer.model.gpt_neox.layers[0].parameters())
    rest = [one for one in trainer.model.parameters() if all(one is not other for other in layer)]
    trainer.optimizer = torch.optim.AdamW([{"params": rest}, {"params": layer, "lr": 6e-2}], lr=3e-3)


def only_the_head(trainer: Any) -> None:
    trainer.model.gpt_neox.requires_grad_(False)


def trained(tiny: str, change: Change = unchanged, **own: Any) -> str:
    callback = CanaryCallback(watch=None, system_metrics=False)
    trainer = sft(tiny, Path.cwd(), [callback], **own)
    change(trainer)
    trainer.train()
    assert callback.run_id is not None
    assert not expanded(MlflowClient().get_run(callback.run_id).data.tags)["canary.troubles"]
    return callback.run_id


def drift(run_id: str) -> dict[str, float]:
    return {layer: value for layer, (value,) in by_layer(read_runs(MlflowClient(), [run_id])).items()}


@pytest.fixture(scope="module")
def told(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A script's run, the same again, and four that were changed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        patch.chdir(tmp_path_factory.mktemp("layers"))
        yield {one.__name__: trained(tiny, one) for one in (unchanged, frozen, detached, faster, only_the_head)} | {
            "again": trained(tiny)
        }


def test_every_layer_is_there_and_an_unchanged_seed_moves_as_far(told: Any) -> None:
    before = drift(told["unchanged"])
    assert list(before) == LAYERS
    assert all(0 < value < 1 for value in before.values())
    assert drift(told["again"]) == before
    shown = canary("diff", told["unchanged"], told["again"])
    assert (shown.exit_code, "Each layer moved as far as before." in shown.stdout) == (0, True), shown.output


@pytest.mark.parametrize(
    ("change", "layers", "rule", "said"),
    [
        ("frozen", ["gpt_neox.layers.1"], "layers.still", "gpt_neox.layers.1 did not move (frozen)"),
        ("detached", ["gpt_neox.embed_in"], "layers.still", "gpt_neox.embed_in did not move (not frozen)"),
        ("only_the_head", LAYERS[:-1], "layers.still", "only lm_head moved (frozen)"),
        ("faster", ["gpt_neox.layers.0"], "layers.astray", "gpt_neox.layers.0 moved"),
    ],
)
def test_what_moves_otherwise_is_shown_and_named(
    told: Any, change: str, layers: list[str], rule: str, said: str
) -> None:
    found = json.loads(canary("diff", told["unchanged"], told[change], "--json").stdout)
    moved = {one["layer"]: one for one in found["layer_drift"]}
    assert list(moved) == LAYERS
    for layer, one in moved.items():
        if rule == "layers.still":
            assert (one["candidate"] == 0) == (layer in layers), layer
        else:
            assert (one["times"] > 10) == (layer in layers), layer
    shown = canary("diff", told["unchanged"], told[change]).stdout
    assert all(f"    {layer} " in shown for layer in layers)
    causes = root_causes(*(read_runs(MlflowClient(), [told[name]]) for name in ("unchanged", change)))
    named = [one.said for one in causes if one.rule == rule]
    assert [said in one for one in named] == [True], causes


def test_a_report_shows_both_sides(told: Any, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert canary("report", told["frozen"], "--html", str(page)).exit_code == 0
    own = drift(told["frozen"])
    figures = Page(page.read_text(encoding="utf-8")).figures
    assert {f"layer_drift.{layer}.candidate": value for layer, value in own.items()}.items() <= figures.items()
    full = canary("report", told["frozen"], "--full").stdout
    assert f"gpt_neox.layers.0 {100 * own['gpt_neox.layers.0']:.3g} %" in full
    assert "gpt_neox.layers.1 0 %" in full


@pytest.mark.parametrize("kind", ["dpo", "kto", "reward", "trainer"])
def test_other_trainers_record_it_too(tiny: str, place: Path, kind: str) -> None:
    callback = CanaryCallback(watch=None, system_metrics=False)
    build(kind, tiny, place, [callback]).train()
    moved = drift(callback.run_id or "")
    assert (len(moved) == len(LAYERS)) is (kind != "trainer"), moved  # whose one weight starts at 0: no size
    assert all(value > 0 for value in moved.values())


def test_an_adapter_moves_what_it_adds_to(tiny: str, place: Path) -> None:
    """By PEFT's own product, on the weights it adapts; what it leaves alone is frozen."""
    callback = CanaryCallback(watch=None, system_metrics=False)
    adapter = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["dense", "query_key_value"])
    trainer = sft(tiny, place, [callback], peft_config=adapter)
    trainer.train()
    layer = trainer.model.get_base_model().gpt_neox.layers[1]
    adapted = [layer.attention.dense, layer.attention.query_key_value]
    added = sum(float(one.get_delta_weight("default").norm()) ** 2 for one in adapted)
    size = sum(float(one.get_base_layer().weight.norm()) ** 2 for one in adapted)
    moved = drift(callback.run_id or "")
    assert moved["gpt_neox.layers.1"] == pytest.approx((added / size) ** 0.5, rel=1e-4)
    assert [layer for layer, value in moved.items() if value == 0] == [LAYERS[0], LAYERS[1], LAYERS[4]]


def test_a_run_that_breaks_off_or_goes_on_from_a_checkpoint_records_none(tiny: str, place: Path) -> None:
    class Breaks(CanaryCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 6:
                raise KeyboardInterrupt

    callback = Breaks(watch=None, system_metrics=False)
    trainer = sft(tiny, place, [callback], save_strategy="steps", save_steps=4)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    callback.close()
    resumed = CanaryCallback(watch=None, system_metrics=False)
    sft(tiny, place, [resumed]).train(resume_from_checkpoint=str(place / "out" / "checkpoint-4"))
    for run_id in (callback.run_id, resumed.run_id):
        tags = expanded(MlflowClient().get_run(run_id).data.tags)
        assert not [key for key in facts_in(tags) if key.startswith("layer_drift.")]
        assert tags["canary.facts.parameters"]
        assert not tags["canary.troubles"]


def after(model: torch.nn.Module, move: Callable[[], None], **own: Any) -> dict[str, str]:
    """What the probe records of a model that `move` moves; it draws no random number of torch's own."""
    given, parameters = setting(model=model, **own), Parameters()
    probe, state = LayerDrift(parameters), torch.get_rng_state()
    for one in (parameters, probe):
        one.start(given)
    with torch.no_grad():
        move()
    probe.ended()
    for one in (parameters, probe):
        one.stop()
    assert torch.equal(state, torch.get_rng_state())
    return {key.removeprefix("layer_drift."): value for key, value in facts_in(probe.tags()).items()}


def test_a_large_model_is_known_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 500))
    weight = model[0].weight

    def move() -> None:
        weight[::10] += 0.3  # a tenth of the rows: the tokens that were seen
        model[1].weight[7, 3] += 1.0  # one value

    expected = float(torch.zeros_like(weight).index_fill(0, torch.arange(0, 1000, 10), 0.3).norm() / weight.norm())
    monkeypatch.setattr(parameters, "MOST", 12_000)
    found = after(model, move)
    assert float(found["0"]) == pytest.approx(expected, rel=0.1)
    assert "1" not in found  # it moved where no sample looks: neither 0 nor known
    assert after(model, lambda: None) == {"0": "0", "1": "0"}


def test_tied_weights_count_once_and_only_the_first_rank_looks() -> None:
    model = torch.nn.Sequential()
    model.add_module("embed", torch.nn.Embedding(20, 4))
    model.add_module("head", torch.nn.Linear(4, 20, bias=False))
    model.head.weight = model.embed.weight

    def move() -> None:
        model.embed.weight.mul_(1.5)

    assert after(model, move) == {"embed": "0.5"}
    assert after(model, move, first_rank=False) == {}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.11.mlp.up_proj.weight", "model.layers.11"),
        ("policy.base_model.model.gpt_neox.layers.0.attention.dense.lora_A.default.weight", "policy.gpt_neox.layers.0"),
        ("base_model.model.score.modules_to_save.default.weight", "score"),
        ("_orig_mod.lm_head.weight", "lm_head"),
        ("w", "w"),
    ],
)
def test_a_layer_is_known_by_its_name(name: str, layer: str) -> None:
    assert layer_of(name) == layer
