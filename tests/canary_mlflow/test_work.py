"""The work of a step, counted on a fixture batch: bit-identical whatever the seed, different where it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tiny_trainers import sft

from canary_mlflow.cli import canary
from canary_mlflow.gates.facts.work import IDENTICAL, IMMATERIAL, MATERIAL, beyond, compare_work, work_note
from canary_mlflow.gates.model.records import Run
from canary_mlflow.tracking.probes.work import work_facts

Change = Callable[[Any], None]


def run(facts: dict[str, str]) -> list[Run]:
    return [Run(run_id="", seed=0, series={}, facts=facts)]


def counted(tiny: str, place: Path, change: Change = lambda trainer: None, **own: Any) -> dict[str, str]:
    trainer = sft(tiny, place, [], **{"max_steps": 1, "seed": 0, **own})
    trainer.train()
    change(trainer)
    found = work_facts(trainer)
    assert found["status"] == "counted", found
    return {f"work.{key}": value for key, value in found.items()}


@pytest.fixture(scope="module")
def plain(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return counted(tiny, tmp_path_factory.mktemp("plain"))


def wrapped(trainer: Any, before: Callable[[Any], None]) -> None:
    step = trainer.training_step

    def training_step(model: Any, inputs: Any, *more: Any) -> Any:
        before(inputs)
        return step(model, inputs, *more)

    trainer.training_step = training_step


def reads(trainer: Any) -> None:
    wrapped(trainer, lambda inputs: trainer.model.get_input_embeddings().weight.sum().item())


def looks_again(trainer: Any) -> None:
    def look(inputs: Any) -> None:
        with torch.no_grad():
            trainer.model(input_ids=inputs["input_ids"], attention_mask=inputs.get("attention_mask"))

    wrapped(trainer, look)


def upcasts(trainer: Any) -> None:
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.register_forward_hook(lambda _module, _inputs, output: output.double().float())


def checkpoints(trainer: Any) -> None:
    trainer.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def views(trainer: Any) -> None:
    wrapped(trainer, lambda inputs: inputs["input_ids"].view(-1))


def sleeps(trainer: Any) -> None:
    wrapped(trainer, lambda inputs: sum(range(10_000)))


def test_other_seeds_weights_and_threads_do_the_same_work(tiny: str, tmp_path: Path, plain: dict[str, str]) -> None:
    with threads(2):
        assert counted(tiny, tmp_path, seed=7, max_steps=3) == plain
    assert compare_work(plain, plain).kind == IDENTICAL
    assert int(plain["work.flops"]) == sum(int(plain[key]) for key in plain if key.startswith("work.flops."))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (reads, "read of a scalar: 1 more at tests/canary_mlflow/test_work.py:"),
        (looks_again, "one more forward pass without gradients"),
        (upcasts, "cast float32 to float64: "),
        (checkpoints, "operations in the backward pass (gradient checkpointing)"),
    ],
)
def test_more_work_is_material_and_named(
    tiny: str, tmp_path: Path, plain: dict[str, str], change: Change, said: str
) -> None:
    found = compare_work(plain, counted(tiny, tmp_path, change))
    assert found.kind == MATERIAL
    assert any(said in one for one in found.said), found.said


def test_views_are_immaterial_and_python_is_not_seen(tiny: str, tmp_path: Path, plain: dict[str, str]) -> None:
    assert compare_work(plain, counted(tiny, tmp_path / "a", views)).kind == IMMATERIAL
    assert compare_work(plain, counted(tiny, tmp_path / "b", sleeps)).kind == IDENTICAL


def test_other_data_do_not_compare_and_a_budget_says_what_is_over(
    tiny: str, tmp_path: Path, plain: dict[str, str]
) -> None:
    other = counted(tiny, tmp_path / "a", per_device_train_batch_size=2)
    assert compare_work(plain, other).kind == ""
    assert not beyond(plain, other, {"flops": 0.1})
    assert work_note(run(plain), run(other), explained=False) == ""
    more = counted(tiny, tmp_path / "b", looks_again)
    (over,) = beyond(plain, more, {"flops": 0.1, "traffic": 9.0})
    assert over.startswith("flops +")
    assert "material change: one more forward pass" in work_note(run(plain), run(more), explained=True)
    assert "identical, so that no operation explains it" in work_note(run(plain), run(plain), explained=False)
    assert work_note(run(plain), run(plain), explained=True) == ""


def test_what_cannot_be_counted_says_why(tiny: str, tmp_path: Path) -> None:
    trainer = sft(tiny, tmp_path, [], max_steps=1)
    trainer.args.torch_compile = True
    assert work_facts(trainer) == {"status": "unavailable: a compiled model would stay eager"}
    trainer.args.torch_compile = False
    assert work_facts(trainer)["status"].startswith("unavailable: ")  # no optimizer before training


def test_a_wrong_budget_is_one_line() -> None:
    done = CliRunner().invoke(canary, ["diff", "a", "b", "--budget", "speed=1"])
    assert done.exit_code == 2
    assert "found 'speed=1'; expected COUNT=SHARE, such as flops=0.1; flops, traffic" in done.stderr
