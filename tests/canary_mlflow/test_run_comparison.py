"""What a command did inside a probe: recorded, and compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import forking
import pytest
import torch

from canary_mlflow.upgrading import run_comparison
from canary_mlflow.upgrading.environments import own_code
from canary_mlflow.upgrading.imports import Imports
from canary_mlflow.upgrading.recording import FOLDER, Recorder, told
from canary_mlflow.upgrading.run_comparison import Recording, Symptom

SCRIPT = """
import sys, torch
from safetensors.torch import save_file
from transformers import Trainer, TrainingArguments
from canary_mlflow.upgrading.inside import begin
folder = sys.argv[1]
begin(folder + "/recordings", "")
from safetensors.torch import save_file

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
    def forward(self, x, labels=None):
        return {"loss": ((self.layer(x) - labels) ** 2).mean(), "logits": self.layer(x)}

class Own(Trainer):
    __hash__ = None  # as of a trainer that is a dataclass (trl 0.26's ORPOTrainer)

rows = [{"x": torch.ones(1), "labels": torch.zeros(1)}] * 8
args = TrainingArguments(folder, max_steps=3, logging_steps=1, use_cpu=True, report_to="none", save_strategy="no")
Trainer(Net(), args, train_dataset=rows).train()
other = Own(Net(), args)
other.evaluate(rows)
sum(at for at in range(20_000_000))
other.log(logs={"eval_own": 3.0})
save_file({"a": torch.ones(4), "b": torch.zeros(2, dtype=torch.int64)}, folder + "/x.safetensors")
save_file({}, folder + "/empty.safetensors")
torch.save(f=folder + "/y.bin", obj={"c": torch.ones(1)})
torch.save({"step": 3}, folder + "/z.bin")
torch.save({"d": torch.ones(1, device="meta")}, folder + "/meta.bin")
from transformers import GenerationConfig, LlamaConfig
LlamaConfig(intermediate_size=8, bos_token_id=None).save_pretrained(folder + "/model")
GenerationConfig(_from_model_config=True).save_pretrained(save_directory=folder + "/model")
"""


def test_all_trainers_files_and_costs_of_a_process_are_written_down(tmp_path: Path) -> None:
    subprocess.run([forking.python(), "-c", SCRIPT, str(tmp_path)], check=True, capture_output=True, text=True)
    found = run_comparison.read(tmp_path / "recordings")
    assert [step for step, _ in found.course[0, "loss"]] == [1, 2, 3]
    assert len(found.course[1, "eval_loss"]) == 1  # by the trainer that never trained
    assert [value for _, value in found.course[1, "eval_own"]] == [3.0]
    assert found.tensors == [
        ("x.safetensors", {"a": [[4], "torch.float32", 2.0, 0.0], "b": [[2], "torch.int64", None, None]}),
        ("empty.safetensors", {}),
        ("y.bin", {"c": [[1], "torch.float32", 1.0, 1.0]}),
        ("meta.bin", {"d": [[1], "torch.float32", None, None]}),
    ]
    assert [name for name, _ in found.texts] == ["config.json", "generation_config.json"]
    held = found.texts[0][1]
    assert held["intermediate_size"] == ["8", False]
    assert held["model_type"] == ["llama", False]
    assert held["hidden_size"] == ["4096", True]  # LlamaConfig's own
    assert (held["bos_token_id"][0], held["transformers_version"][0]) == (None, "")
    assert "_from_model_config" not in found.texts[1][1]
    assert found.costs["cost.outside"] * found.unit > 0.3  # the sum of a range
    assert found.costs["cost.memory"] >= 0


def test_a_probe_s_python_records_from_its_start_and_sees_modules_as_they_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_ENVIRONMENTS", str(tmp_path / "environments"))
    place = own_code()
    (place / "sitecustomize.py").unlink()
    (place / "sitecustomize.py").symlink_to(tmp_path / "of-another-release.py")
    (tmp_path / "late.py").write_text("import importlib; value = 1; importlib.import_module('late')\n")
    script = """
from canary_mlflow.upgrading.imports import Imports
imports = Imports()
imports.watch()
imports.after("late", lambda module: setattr(module, "value", module.value + 1))
imports.after("late", lambda module: module.of_another_release)
import importlib.util
importlib.util.find_spec("late")  # as transformers asks whether a package is there
from late import value
imports.after("late", lambda module: setattr(module, "value", 7))
import late, torch
print(value, late.value, imports.seconds > 0, torch.save.__module__, hasattr(torch.save, "__wrapped__"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PYTHONPATH": f"{own_code()}{os.pathsep}{tmp_path}", FOLDER: str(tmp_path / "recordings")},
    )  # fmt: skip
    assert done.stdout.split() == ["2", "7", "True", "torch.serialization", "True"]


def test_a_tensor_that_cannot_tell_its_shape_breaks_no_script_that_saves_it() -> None:
    assert told(torch.nn.UninitializedParameter()) == [[], "UninitializedParameter", None, None]
    assert told(torch.tensor([3.0, 4.0])) == [[2], "torch.float32", 5.0, -1.0]


def recorded(folder: Path, logged: Mapping[str, Sequence[float]] = {}, **files: object) -> Recording:
    """What one process did: the values of each metric, and files of tensors or texts."""
    folder.mkdir()
    steps = range(max(map(len, logged.values()), default=0))
    rows = [
        {"trainer": 0, "step": at + 1, "values": {key: values[at] for key, values in logged.items() if values[at:]}}
        for at in steps
    ]
    told = {"logged": rows, "tensors": [], "texts": [], "memory": [], "outside": 1.0, "kernel": 1.0}
    (folder / "1.json").write_text(json.dumps({**told, **files}))
    return run_comparison.read(folder)


def tensors(**held: Sequence[object]) -> list[dict[str, object]]:
    return [{"file": "model.safetensors", "holds": held}] if held else []


def clauses(found: run_comparison.Found) -> list[str]:
    return [one.said for one in found]


def kinds(found: run_comparison.Found) -> list[str]:
    return [f"{one.key.partition(':')[0]}: {one.said}" for one in found]


def test_a_saved_setting_that_is_only_called_otherwise_is_there(tmp_path: Path) -> None:
    """transformers 4.56 saves config.json with dtype for torch_dtype, and reads both."""
    here, there = (
        recorded(tmp_path / dtype, texts=[{"file": "config.json", "holds": {dtype: ["float32", False]}}])
        for dtype in ("torch_dtype", "dtype")
    )
    assert [*run_comparison.other_texts([here], there)] == []


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"loss": [3.0] * 9}, {"loss": [3.0] * 8 + [0.75]}, ["loss of step 9 3 → 0.75"]),
        ({"loss": [3.0] * 5}, {"loss": [3.0, 3.00001, 3.0003, 3.003, 3.03]}, []),  # rounding, grown
        ({"loss": [3.0] * 5}, {"loss": [3.0, 3.0, 3.0, 3.0, 3.03]}, ["loss of step 5 3 → 3.03"]),
        ({"loss": [3.1234]}, {"loss": [3.123423]}, []),  # logged with fewer digits
        ({"learning_rate": [1e-3, 9e-4]}, {"learning_rate": [1e-3, 8e-4]}, ["learning_rate of step 2 0.0009 → 0.0008"]),
        ({"rewards/margins": [1e-6]}, {"rewards/margins": [5e-6]}, []),  # the difference of two large numbers
        ({"eval_my_score": [0.9]}, {"eval_my_score": [0.5]}, ["eval_my_score of step 1 0.9 → 0.5"]),
        (
            {"rewards/accuracies": [0.5], "logps/chosen": [30.0]},
            {"rewards/accuracies": [0.4], "logps/chosen": [30.0]},
            ["rewards/accuracies of step 1 0.5 → 0.4"],
        ),
        (
            {"rewards/accuracies": [0.5], "logps/chosen": [30.0]},
            {"rewards/accuracies": [0.45], "logps/chosen": [30.0001]},
            [],
        ),
        ({"eval_my_score": [0.9]}, {}, ["eval_my_score is not logged any more"]),
        ({"eval_runtime": [1.0], "train_loss": [2.0]}, {"eval_runtime": [2.0], "train_loss": [3.0]}, []),
        ({"loss": [3.0] * 4}, {"loss": [3.0] * 3}, ["loss was logged 4 → 3 times"]),
    ],
)
def test_another_course_is_told_from_rounding(
    tmp_path: Path, before: dict[str, list[float]], now: dict[str, list[float]], said: list[str]
) -> None:
    here, there = recorded(tmp_path / "a", before), recorded(tmp_path / "b", now)
    assert clauses(run_comparison.other_course([here], there, 1e-5)) == said
    unsteady = recorded(tmp_path / "c", {key: [value + 1 for value in values] for key, values in before.items()})
    told = clauses(run_comparison.other_course([here, unsteady], there, 1e-5))
    assert told == [one for one in said if "times" in one]


def test_a_release_that_names_its_classes_anew_ends_no_command(tmp_path: Path) -> None:
    module = ModuleType("transformers.configuration_utils")
    Recorder(str(tmp_path), Imports()).of_texts(module)
    module.PretrainedConfig = type("PretrainedConfig", (), {"save_pretrained": lambda own, save_directory: "saved"})
    Recorder(str(tmp_path), Imports()).of_texts(module)
    assert module.PretrainedConfig().save_pretrained(tmp_path) == "saved"


def test_a_rate_logged_a_step_later_is_shown_and_any_other_rate_blocks(tmp_path: Path) -> None:
    def told(name: str, rates: list[float]) -> set[str]:
        here = recorded(tmp_path / f"a{name}", {"learning_rate": [4.0, 3.0, 2.0, 1.0]})
        there = recorded(tmp_path / f"b{name}", {"learning_rate": rates})
        return {one.key for one in run_comparison.other_course([here], there, 1e-5)}

    assert told("later", [5.0, 4.0, 3.0, 2.0]) == told("earlier", [3.0, 2.0, 1.0, 0.0]) == {"besides.learning_rate"}
    assert told("other", [4.0, 3.0, 3.0, 2.0]) == {"logged.learning_rate"}


def test_what_is_defined_anew_does_not_hide_another_loss_later(tmp_path: Path) -> None:
    here = recorded(tmp_path / "a", {"entropy": [1.0, 1.0], "loss": [3.0, 3.0]})
    there = recorded(tmp_path / "b", {"entropy": [2.0, 1.0], "loss": [3.0, 2.0]})
    found = [one.key for one in run_comparison.other_course([here], there, 1e-5)]
    assert found == ["besides.entropy", "logged.loss"]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"a": [[2], "f", 1.0, 0.5], "b": [[2], "f", 1.001, 0.5]}, []),
        ({"a": [[2], "f", 1.0, 0.5]}, ["model.safetensors lacks b"]),
        (
            {"a": [[2], "f", 1.0, 0.5], "c": [[2], "f", 1.0, 0.5]},
            ["model.safetensors lacks b", "model.safetensors also holds c"],
        ),
        ({"a": [[2], "h", 1.0, 0.5], "b": [[2], "f", 1.0, 0.5]}, ["a in model.safetensors f [2] → h [2]"]),
        ({"a": [[3], "f", None, None], "b": [[2], "f", 1.0, 0.5]}, ["a in model.safetensors f [2] → f [3]"]),
        ({"a": [[2], "f", 1.5, 0.5], "b": [[2], "f", 1.0, 0.5]}, ["norm of a in model.safetensors 1 → 1.5"]),
        ({}, ["model.safetensors is not saved"]),
    ],
)
def test_other_saved_tensors_are_named(tmp_path: Path, now: dict[str, list[object]], said: list[str]) -> None:
    here = recorded(tmp_path / "a", tensors=tensors(a=[[2], "f", 1.0, 0.5], b=[[2], "f", 1.0, 0.5]))
    there = recorded(tmp_path / "b", tensors=tensors(**now))
    assert clauses(run_comparison.other_tensors([here], there)) == said


@pytest.mark.parametrize(
    ("gradient", "kind", "saved", "said"),
    [
        (1.0, "f", [4.0, 0.5], []),
        (1.0, "f", [4.0, -0.5], ["other values in a of model.safetensors, of the same norm"]),  # with another sign
        (1.0, "f", [4.004, 0.5], ["norm of a in model.safetensors 4 → 4.004"]),
        (1.0, "torch.bfloat16", [4.004, 0.51], []),  # rounded once more
        (1.0, "torch.bfloat16", [4.0, -0.5], ["other values in a of model.safetensors, of the same norm"]),
        (1.00001, "f", [4.004, -0.5], []),  # rounding made other weights
    ],
)
def test_after_the_same_gradients_the_same_is_saved(
    tmp_path: Path, gradient: float, kind: str, saved: list[float], said: list[str]
) -> None:
    here = recorded(tmp_path / "a", {"grad_norm": [1.0]}, tensors=tensors(a=[[2], kind, 4.0, 0.5]))
    there = recorded(tmp_path / "b", {"grad_norm": [gradient]}, tensors=tensors(a=[[2], kind, *saved]))
    assert clauses(run_comparison.other_tensors([here], there)) == said


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ([("a.json", "x y assumed nothing new"), ("a.json", "x"), ("new.txt", "")], []),
        ([("a.json", "x assumed"), ("a.json", "x")], ["saved.keys: a.json lacks y"]),
        ([("a.json", "new assumed"), ("a.json", "x")], ["saved.keys: a.json lacks x and 1 more"]),
        ([("a.json", "x y assumed"), ("a.json", "x")], []),
        ([("a.json", "x y nothing"), ("a.json", "x")], ["besides.text: a.json lacks assumed"]),
        ([("a.json", "x"), ("a.json", "x")], ["saved.keys: a.json lacks y", "besides.text: a.json lacks assumed"]),
        ([("a.json", "x y- assumed"), ("a.json", "x")], ["saved.emptied: a.json holds nothing for y"]),
        ([("a.json", "x y assumed- nothing"), ("a.json", "x")], ["saved.emptied: a.json holds nothing for assumed"]),
        ([("a.json", "x y assumed")], ["saved.text: a.json is saved 1 times only"]),
        ([("b.json", "x")], ["saved.text: a.json is not saved", "saved.text: a.json is saved 1 times only"]),
    ],
)
def test_a_text_that_no_longer_holds_what_it_held_is_named(now: list[tuple[str, str]], said: list[str]) -> None:
    def saved(*texts: tuple[str, str]) -> Recording:
        nothing = ("nothing", "y-", "assumed-")
        return Recording(texts=[
            (name, {key.rstrip("-"): (None if key in nothing else "1", key == "assumed") for key in keys.split()})
            for name, keys in texts
        ])  # fmt: skip

    here = saved(("a.json", "x y assumed nothing"), ("a.json", "x"))
    assert kinds(run_comparison.other_texts([here], saved(*now))) == said
    assert kinds(run_comparison.other_texts([here, saved()], saved(*now))) == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"read_class": "Old", "top_k": "50"}, []),
        ({"read_class": "New", "top_k": "50"}, ["saved.reader: read_class in a.json Old → New"]),
        ({"read_class": "Old", "top_k": "20"}, ["besides.value: top_k in a.json 50 → 20"]),
        ({"read_class": "Old"}, ["besides.text: a.json lacks top_k"]),
    ],
)
def test_a_saved_text_that_says_otherwise_is_named(now: dict[str, str], said: list[str]) -> None:
    def saved(**values: str) -> Recording:
        return Recording(texts=[("a.json", {key: (value, True) for key, value in values.items()})])

    here, there = saved(read_class="Old", top_k="50"), saved(**now)
    assert kinds(run_comparison.other_texts([here], there)) == said
    unsteady = saved(read_class="Once", top_k="1")
    assert kinds(run_comparison.other_texts([here, unsteady], there)) == [one for one in said if "lacks" in one]


def test_a_metric_that_is_logged_no_more_is_shown(tmp_path: Path) -> None:
    here, there = recorded(tmp_path / "a", {"kl": [0.1], "loss": [1.0]}), recorded(tmp_path / "b", {"loss": [1.0]})
    assert [*run_comparison.other_course([here], there, 1e-5)] == [Symptom("besides.kl", "kl is not logged any more")]


def test_what_a_library_may_define_anew_is_shown_and_does_not_decide(tmp_path: Path) -> None:
    logged = {key: [1.0] for key in ("entropy", "kl", "reward", "loss", "own_score", "own_time")}
    here, there = recorded(tmp_path / "a", logged), recorded(tmp_path / "b", {key: [2.0] for key in logged})
    found = sorted(one.key for one in run_comparison.other_course([here], there, 1e-5))
    assert found == ["besides.entropy", "besides.own_score", "logged.kl", "logged.loss", "logged.reward"]


def test_a_cost_counts_where_every_repetition_is_higher() -> None:
    def told(now: list[float], key: str = "cost.step", base: Sequence[float] = (10.0, 11.0, 9.0)) -> list[str]:
        return [one.key for one in run_comparison.dearer([{key: at} for at in base], [{key: at} for at in now], 1)]

    assert told([13.0, 12.2, 15.0]) == ["cost.step"]
    assert told([13.0, 12.0, 15.0]) == []
    assert told([11.9, 13.0, 11.9], base=(9.95, 10.0, 10.1)) == []  # as on a busy machine, between equal releases
    assert told([13.0, 12.2, 15.0], "cost.memory") == []  # three MiB
