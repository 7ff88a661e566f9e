"""Weights are what was trained: folders that a session did not end with are refused, whoever saved them and however."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from mlflow import MlflowClient
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_trainers import build, save_tiny, sft
from transformers import AutoModelForCausalLM

import canary_mlflow
from canary_mlflow import CanaryCallback
from canary_mlflow.cli import canary
from canary_mlflow.errors import UsageError
from canary_mlflow.registry.guard.seal import seal_version
from canary_mlflow.registry.guard.trained import compare
from canary_mlflow.registry.sessions import registering, weights_check
from canary_mlflow.tags import MODEL_SOURCE, SESSION_ID
from canary_mlflow.tracking.delivery import uploading
from canary_mlflow.tracking.describing.fact_tags import jsonable
from canary_mlflow.tracking.describing.trained import places
from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.probes.trained import answer_of, look
from canary_mlflow.tracking.stores.session import child_runs
from canary_mlflow.training import check_weights

Change = Callable[[Path], None]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that loads the folder is this one: a process of its own takes 5 s of CPU."""

    def asked(folder: Path, records: Any, tokens: int) -> Any:
        file = folder.parent / "records.json"
        file.write_text(json.dumps(records))
        with redirect_stdout(StringIO()) as said:
            check_weights.main([str(folder), "--tokens", str(tokens), *(["--records", str(file)] if records else [])])
        return json.loads(said.getvalue())

    monkeypatch.setattr(weights_check, "asked", asked)


def train(place: Path, made: Callable[..., Any], *given: Any, name: str = "mine", **own: Any) -> tuple[str, Any]:
    """A session of one run, and its trainer."""
    with canary_mlflow.session(name, tracking_uri=f"sqlite:///{place / 'mlflow.db'}") as opened:
        trainer = made(str(place / "tiny"), place, [CanaryCallback(watch=None)], *given, **own)
        trainer.train()
    return opened.session_id, trainer


def saved(trainer: Any, folder: Path, model: Any = None) -> Path:
    """What a script saves, with its tokenizer."""
    (model or trainer.model).save_pretrained(folder)
    trainer.processing_class.save_pretrained(folder)
    return folder


def register(place: Path, session_id: str, folder: Path) -> str:
    """What `canary register` answers: '' for a version."""
    words = ["register", session_id, "--weights", str(folder), "--tracking-uri", f"sqlite:///{place / 'mlflow.db'}"]
    done = CliRunner().invoke(canary, words)
    assert done.exit_code in (0, 2), done.output
    return done.stderr if done.exit_code else ""


def changed(place: Path, session_id: str, folder: Path, change: Change) -> str:
    """What `canary register` answers to a folder that was changed, which is then removed."""
    try:
        change(folder)
        return register(place, session_id, folder)
    finally:
        shutil.rmtree(folder)


def tag(place: Path, version: str = "1") -> str:
    client = MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
    return str(client.get_model_version("mine", version).tags.get("canary.weights_checked"))


LORA = LoraConfig(r=4, lora_alpha=8, target_modules=["query_key_value"], modules_to_save=["lm_head"])


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Any]:
    """A session of a LoRA adapter, with a checkpoint before its end."""
    place = tmp_path_factory.mktemp("lora")
    save_tiny(str(place / "tiny"))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        own = {"save_strategy": "steps", "save_steps": 4, "learning_rate": 2e-2}
        session_id, trainer = train(place, sft, LORA, **own)
        saved(trainer, place / "good")
        _, other = train(place, sft, LORA, name="other", seed=7, learning_rate=1e-2)
        saved(other, place / "other")
    return place, session_id, trainer


def adapter(change: Callable[[dict[str, torch.Tensor]], Any], file: str = "adapter_model.safetensors") -> Change:
    def act(folder: Path) -> None:
        held = load_file(folder / file)
        change(held)
        save_file(held, folder / file, metadata={"format": "pt"})

    return act


def settings(file: str, **changed: Any) -> Change:
    def act(folder: Path) -> None:
        found = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(found | changed))

    return act


def instead(name: str) -> Change:
    def act(folder: Path) -> None:
        shutil.copytree(folder.parent / name, folder, dirs_exist_ok=True)

    return act


def zero(held: dict[str, torch.Tensor]) -> None:
    for name in held:
        if "lora_B" in name:
            held[name].zero_()


def flip(held: dict[str, torch.Tensor]) -> None:
    for name in held:
        if "lora_B" in name:
            held[name] = held[name].flip(0).contiguous()


def imitate(held: dict[str, torch.Tensor]) -> None:
    """Other numbers with the same norm, and as they were at the places that are recorded."""
    name = next(one for one in held if "lora_B" in one)
    flat = held[name].reshape(-1)
    free = [at for at in range(len(flat)) if at not in places(len(flat))]
    flat[free] = flat[free[::-1]]


WRONG_ADAPTERS: dict[str, tuple[Change, str]] = {
    "lora_B is zero": (adapter(zero), "lora_B.weight is 0, at the end of the training it was "),
    "one made to look like it": (adapter(imitate), "lora_B.weight holds other numbers than at the end"),
    "rows in another order": (adapter(flip), "lora_B.weight is "),
    "another session's": (instead("other"), "at the end of the training it was "),
    "an earlier checkpoint": (instead("out/checkpoint-4"), "at the end of the training it was "),
    "modules_to_save are lost": (adapter(lambda held: held.pop("base_model.model.lm_head.weight")), "cannot be "),
    "another alpha": (settings("adapter_config.json", lora_alpha=32), "adapter_config.json says lora_alpha 32, the"),
}


@pytest.mark.parametrize("kind", WRONG_ADAPTERS)
def test_an_adapter_that_its_session_did_not_train_is_refused(kind: str, lora: Any, here: None) -> None:
    place, session_id, _ = lora
    change, says = WRONG_ADAPTERS[kind]
    said = changed(place, session_id, shutil.copytree(place / "good", place / "wrong"), change)
    assert says in said, said
    assert said.endswith(f"the session is kept: canary register {session_id} --weights FOLDER\n")


def merged(place: Path, **own: Any) -> Any:
    return AutoPeftModelForCausalLM.from_pretrained(place / "good", **own).merge_and_unload()


def twice(place: Path) -> Any:
    """A merge done twice."""
    once, base = merged(place).state_dict(), AutoModelForCausalLM.from_pretrained(place / "tiny")
    begun = base.state_dict()
    base.load_state_dict({name: 2 * one - begun[name] for name, one in once.items()})
    return base


def lost(place: Path) -> Any:
    """A merge that was rounded so coarsely that small changes are gone."""
    found, base = merged(place), AutoModelForCausalLM.from_pretrained(place / "tiny").state_dict()
    kept = {name: torch.where((one - base[name]).abs() < 0.02, base[name], one)
            for name, one in found.state_dict().items()}  # fmt: skip
    found.load_state_dict(kept)
    return found


WRONG_MERGES: dict[str, tuple[Callable[[Path], Any], Change, str]] = {
    "the base": (lambda place: AutoModelForCausalLM.from_pretrained(place / "tiny"), lambda _: None, "as before the"),
    "merged twice": (twice, lambda _: None, "at the end of the training it was "),
    "rounded away": (lost, lambda _: None, "at the end of the training it was "),
    "every token ends": (merged, settings("generation_config.json", eos_token_id=[0, 1, 2]), "eos_token_id [0, 1, 2]"),
    "another activation": (merged, settings("config.json", hidden_act="relu"), "its model answers "),
}


@pytest.mark.parametrize("kind", WRONG_MERGES)
def test_a_merge_of_something_else_is_refused(kind: str, lora: Any, here: None) -> None:
    place, session_id, trainer = lora
    make, change, says = WRONG_MERGES[kind]
    said = changed(place, session_id, saved(trainer, place / "wrong", make(place)), change)
    assert says in said, said


def smaller(folder: Path) -> None:
    """As it was before tokens were added (hiyouga/LLaMA-Factory#2740)."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(280)
    model.save_pretrained(folder)


def beside_a_copy(folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder / "zz.safetensors")
    adapter(lambda held: [one.add_(0.3) for one in held.values()], "model.safetensors")(folder)


def asked_nothing(folder: Path) -> None:
    beside_a_copy(folder)
    settings("config.json", auto_map={}, architectures=["Mine"])(folder)


def exchanged(folder: Path) -> None:
    held, numbers = load_file(folder / "model.safetensors"), {"0": "1", "1": "0"}
    short = {name.removeprefix("gpt_neox."): one for name, one in held.items()}
    named = {
        re.sub(r"layers\.(\d)", lambda found: f"layers.{numbers[found[1]]}", name): one for name, one in short.items()
    }
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})


def other_words(folder: Path) -> None:
    found = json.loads((folder / "tokenizer.json").read_text())
    words = found["model"]["vocab"]
    own = [word for word in words if word not in {one["content"] for one in found["added_tokens"]}]
    words |= dict(zip(own, [words[word] for word in own][::-1], strict=True))
    (folder / "tokenizer.json").write_text(json.dumps(found))


FULL: dict[str, tuple[Change, str]] = {
    "embeddings in another order": (
        adapter(lambda held: held.update({"gpt_neox.embed_in.weight": held["gpt_neox.embed_in.weight"].flip(0)}),
                "model.safetensors"), "gpt_neox.embed_in.weight is "),
    "no output layer": (
        adapter(lambda held: held.pop("embed_out.weight"), "model.safetensors"), "no weights for lm_head.weight"),
    "noise beside a copy that sorts later": (beside_a_copy, " is "),
    "two layers exchanged under other names": (exchanged, "its model answers "),
    "a setting that keeps it from being asked": (asked_nothing, " is "),
    "another tokenizer of the same size": (other_words, "its tokenizer.json is not that of its run"),
    "no end": (settings("generation_config.json", eos_token_id=None), "says eos_token_id None, the run had 1"),
    "a smaller vocabulary": (smaller, "has 4480 numbers, at the end of the training it had 4800"),
    "a rotation of positions": (settings("config.json", rotary_pct=1.0, rope_parameters={
        "rope_theta": 50.0, "rope_type": "default", "partial_rotary_factor": 1.0}), "its model answers "),
}  # fmt: skip


def test_a_whole_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: None) -> None:
    """Wrong ones are refused, and the right one is a version as it is, in shards, and cast to another type."""
    monkeypatch.chdir(tmp_path)
    save_tiny(str(tmp_path / "tiny"))
    session_id, trainer = train(tmp_path, sft, learning_rate=1e-2)
    good = saved(trainer, tmp_path / "good")
    for kind, (change, says) in FULL.items():
        folder = shutil.copytree(good, tmp_path / "wrong")
        change(folder)
        said = register(tmp_path, session_id, folder)
        assert says in said, (kind, said)
        shutil.rmtree(folder)
    shards = tmp_path / "shards"
    trainer.model.save_pretrained(shards, max_shard_size="20KB")
    trainer.processing_class.save_pretrained(shards)
    (gone, *_) = sorted(shards.glob("*.safetensors"))
    kept = gone.read_bytes()
    gone.unlink()
    assert "cannot be loaded" in register(tmp_path, session_id, shards)
    gone.write_bytes(kept)
    assert register(tmp_path, session_id, shards) == ""
    assert tag(tmp_path) == "the model's answer", "this release saves lm_head by another name"
    again, trainer = train(tmp_path, sft, learning_rate=1e-2)
    assert register(tmp_path, again, saved(trainer, tmp_path / "cast", trainer.model.to(torch.bfloat16))) == ""
    assert tag(tmp_path, "2") == "the model's answer", "a type that rounds leaves no digest"


def test_a_good_adapter_and_its_merge_are_versions(lora: Any, here: None, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(lora[0] / "tiny", tmp_path / "tiny")
    for number, kind in enumerate(("adapter", "merged", "merged in 16 bits"), 1):
        session_id, trainer = train(tmp_path, sft, LORA, learning_rate=2e-2)
        folder = saved(trainer, tmp_path / kind)
        if number > 1:
            dtype = torch.bfloat16 if number == 3 else torch.float32
            model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=dtype).merge_and_unload()
            shutil.rmtree(folder)
            saved(trainer, folder, model)
        assert register(tmp_path, session_id, folder) == "", kind
        assert tag(tmp_path, str(number)).startswith("the tensors of run " if number == 1 else "the model's"), kind


@pytest.mark.parametrize("own", [{"use_dora": True}, {"target_modules": ["embed_in"]}, {"use_rslora": True}])
def test_a_merge_of_another_kind_of_lora_is_known_by_its_answer(own: Any, tmp_path: Path, here: None) -> None:
    base = save_tiny(str(tmp_path / "tiny"))
    lora = LoraConfig(**{"r": 2, "target_modules": ["query_key_value"], "init_lora_weights": False} | own)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora)
    record = json.loads(json.dumps(jsonable(look(Setting(model=model, device="cpu", compiled=False, ranks=1,
                                                         iterates=False, idle_cpu=float)))))  # fmt: skip
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    shutil.copytree(base, tmp_path / "base")
    for name, is_it in (("merged", True), ("base", False)):
        compared = compare(tmp_path / name, {"run": record})
        said = weights_check.asked(tmp_path / name, {"run": record}, 0)
        assert (bool(compared.fault or "fault" in said), "difference" in said) == (not is_it, True), (compared, said)


@pytest.mark.parametrize("kind", ["dpo", "reward", "grpo"])
def test_what_other_trainers_train_is_known_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: None
) -> None:
    monkeypatch.chdir(tmp_path)
    save_tiny(str(tmp_path / "tiny"))
    session_id, trainer = train(tmp_path, lambda *given, **own: build(kind, *given, **own), max_steps=3)
    folder = saved(trainer, tmp_path / "good")
    wrong = shutil.copytree(folder, tmp_path / "wrong")
    adapter(lambda held: held.update({name: one * 1.01 for name, one in held.items()}), "model.safetensors")(wrong)
    assert "at the end of the training it was" in register(tmp_path, session_id, wrong)
    assert register(tmp_path, session_id, folder) == ""
    (run,) = child_runs(MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}"), session_id)
    (record,) = Path(str(run.info.artifact_uri).removeprefix("file://")).glob("trained.json")
    assert "unanswered" not in json.loads(record.read_text())


def test_asking_a_model_leaves_it_as_it_was(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_tiny(str(tmp_path)))
    model.train()
    model.gpt_neox.layers[0].eval()
    modes = [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    assert answer_of(model) == answer_of(model)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(one.grad is None and one.requires_grad for one in model.parameters())


def test_what_was_not_compared_is_no_champion_until_it_is(
    lora: Any, tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registered where there is no torch and not all tensors are found; judged where there is torch."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(lora[0] / "tiny", tmp_path / "tiny")
    (tmp_path / "quick.yaml").write_text("base: smoke\nhard: {learned: false}\nmin_baseline_runs: 1\n")
    store = ["--tracking-uri", f"sqlite:///{tmp_path / 'mlflow.db'}"]
    session_id, trainer = train(tmp_path, sft, LORA, max_steps=40)
    folder = saved(trainer, tmp_path / "good")
    settings("adapter_config.json", lora_dropout=0.5)(folder)  # which changes no answer; the tensors do not say so
    gate = ["gate", "mine", "1", "--policy", "quick.yaml", *store]
    with monkeypatch.context() as bare:
        bare.setattr(weights_check, "asked", lambda *_: {"unknown": "No module named 'torch'"})
        assert register(tmp_path, session_id, folder) == ""
        assert tag(tmp_path) == "not checked: adapter_config.json says lora_dropout 0.5, the run had 0.0"
        held = CliRunner().invoke(canary, gate)
        assert held.exit_code == 3, held.output
        words = " ".join(held.stdout.split())
        assert "its weights were not compared with what its session trained: adapter_config.json says" in words
    now = CliRunner().invoke(canary, gate)
    assert (now.exit_code, now.stdout.startswith("BOOTSTRAP  mine version 1")) == (0, True), now.output


@pytest.mark.parametrize("kind", ["good", "other"])
def test_a_runs_own_folder_is_what_the_run_ended_with(kind: str, lora: Any, here: None, tmp_path: Path) -> None:
    """In the place that its tag names; `other` is the adapter of another session."""
    place, name = lora[0], f"own-{kind}"
    client = MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
    with canary_mlflow.session(name, tracking_uri=client.tracking_uri) as opened:
        trainer = sft(str(place / "tiny"), place, [CanaryCallback(watch=None)], LORA, learning_rate=2e-2)
        trainer.train()
        folder = saved(trainer, tmp_path / "good") if kind == "good" else shutil.copytree(place / kind, tmp_path / kind)
        (run,) = child_runs(client, opened.session_id)
        client.set_tag(run.info.run_id, MODEL_SOURCE, str(folder))
    client.create_registered_model(name)
    tags = {SESSION_ID: opened.session_id}
    made = client.create_model_version(name, str(folder), run_id=run.info.run_id, tags=tags)
    if kind == "good":
        seal_version(client, name, str(made.version))
        return
    with pytest.raises(UsageError, match="at the end of the training it was"):
        seal_version(client, name, str(made.version))


def test_what_was_asked_is_what_is_sealed(lora: Any, here: None, tmp_path: Path, monkeypatch: Any) -> None:
    """Somebody exchanges the files between the question and the seal, for others with the same tensors."""
    place, session_id, trainer = lora
    folder = saved(trainer, tmp_path / "folder", merged(place))

    def upload(*given: Any) -> Any:
        settings("config.json", hidden_act="relu")(folder)
        return uploading.upload(*given)

    monkeypatch.setattr(registering, "upload", upload)
    assert "those whose model was asked were " in register(place, session_id, folder)
