"""The one line in somebody's own script: several seeds are a side, and the screen says where a run went."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pytest
from click.testing import CliRunner, Result
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from peft import LoraConfig
from safetensors.numpy import save_file
from tiny_trainers import sft, trainer
from transformers import Trainer, TrainerCallback
from workplace import Workplace

import canary_mlflow
from canary_mlflow import CanaryCallback, session
from canary_mlflow.cli import canary
from canary_mlflow.errors import CanaryError, UsageError
from canary_mlflow.tracking.describing.workload import shape_of
from canary_mlflow.tracking.experiment import VARIABLE
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.stores.session import child_runs


def test_seeds_below_one_parent_are_one_side(store: str, tiny: str, tmp_path: Path, capsys: Any) -> None:
    """docs/tracking.md, Several seeds; what the script changed is said, its own param too, and not where it wrote."""
    sides = []
    for name, rate in (("before", 3e-3), ("after", 1e-2)):
        with mlflow.start_run(run_name=name) as side:
            for seed in range(2):
                with mlflow.start_run(nested=True):
                    mlflow.log_params({"recipe": name, "reward.model_name": name})
                    mlflow.set_tag("mlflow.project.entryPoint", "main")  # as `mlflow run` does for a script's project
                    sft(tiny, tmp_path / name / str(seed), [CanaryCallback()], seed=seed, learning_rate=rate).train()
        sides.append(side.info.run_id)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("canary: run ")]
    assert len(said) == 4
    assert f"is in {store}; canary report " in said[0]
    result = CliRunner().invoke(canary, ["compare", *sides, "--policy", "smoke", "--json"], catch_exceptions=False)
    found = json.loads(result.stdout)
    assert (len(found["verdict"]["baseline_runs"]), len(found["verdict"]["candidate_runs"])) == (2, 2)
    own = "recipe before → after; reward.model_name before → after"
    assert found["changed"].startswith(f"Changed: learning_rate 0.003 → 0.01; {own}.")


def said(*words: str, code: int = 0) -> Result:
    """What a command answers, and that it ends with this code."""
    result = CliRunner().invoke(canary, list(words), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def trained(place: Path, seeds: int = 3, save: Path | None = None, **own: Any) -> str:
    """A session of one script, and its id. `save`: where the last model goes."""
    with session("mine") as opened:
        for seed in range(seeds):
            usual = {"seed": seed, "max_steps": 40}
            made = trainer("", place / str(seed), [CanaryCallback()], **usual | own)
            made.train()
    if save is not None:
        save_file({"w": made.model.w.detach().numpy()}, save / "model.safetensors")
    return opened.session_id


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """What trainer.save_model() wrote."""
    folder = tmp_path / "weights"
    folder.mkdir()
    save_file({"w": np.ones(4, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


LEARNING = """
base: files
"""  # the clocks of a test machine decide nothing


def test_a_session_is_registered_and_judged(store: str, tmp_path: Path, weights: Path, capfd: Any) -> None:
    (tmp_path / "learning.yaml").write_text(LEARNING)
    first = trained(tmp_path / "out", save=weights)
    assert VARIABLE not in os.environ
    assert (
        f"session {first} is in {store}: 3 runs; canary register {first} [--weights FOLDER]" in capfd.readouterr().err
    )
    assert said("register", first, "--weights", str(weights)).stdout == "1\n"
    assert "mine version 1" in said("gate", "mine", "1").stdout  # by the session's policy: nobody named one
    second, third = trained(tmp_path / "out"), trained(tmp_path / "out", learning_rate=30.0, save=weights)
    assert said("register", second, "mine").stdout == "2\n"
    assert said("gate", "mine", "2", "--policy", "learning.yaml").stdout.startswith("PASS  mine version 2 against")
    assert "(before: version 1). It is evidence only: there are no weights" in said("report", "mine/2").stdout
    said("register", third, "--weights", str(weights))
    assert said("gate", "mine", "3", "--policy", "learning.yaml", code=1).stdout.startswith("BLOCK  mine version 3")
    more = said("gate", "mine", "3", "--policy", "learning.yaml", "--top-up", code=2).stderr
    assert "version 3 of 'mine': it has no session that `canary run` made; expected one; another" in more
    said("register", trained(tmp_path / "out", seeds=1))
    alone = said("gate", "mine", "4", "--policy", "learning.yaml", code=0).stdout
    assert "in one session" in " ".join(alone.split()), alone  # no option of `canary run`, and no --top-up
    client = MlflowClient()
    assert client.get_model_version_by_alias("mine", "champion").version == 2
    kept = client.list_artifacts(first, "model")
    assert [item.path for item in kept] == ["model/config.json", "model/model.safetensors"]
    runs = [client.get_run(run_id) for run_id in children(client, first)]
    assert sorted(run.data.tags["canary.seed"] for run in runs) == ["0", "1", "2"]
    assert {run.info.status for run in runs} == {client.get_run(first).info.status} == {"FINISHED"}
    blocked = client.get_run(third)
    assert (blocked.info.status, blocked.data.params["cfg/learning_rate"]) == ("FAILED", "30.0")
    assert {client.get_run(run_id).info.status for run_id in children(client, third)} == {"FINISHED"}
    shown = {one.dataset.name: one.dataset.digest for one in runs[0].inputs.dataset_inputs}
    assert list(shown) == ["training data"]
    assert shown["training data"].startswith("64 rows")
    assert max(len(run.data.tags) for run in (*runs, blocked)) <= 25
    assert "canary audit log mine" in client.get_registered_model("mine").description


def test_what_a_run_recorded_together_cannot_be_changed_unseen(store: str, tmp_path: Path) -> None:
    client, opened = MlflowClient(), trained(tmp_path, seeds=2)
    version = canary_mlflow.register(opened)
    said("gate", "mine", str(version), "--policy", "files")
    said("audit", "verify")
    run = children(client, opened)[0]
    for name, then, now in (
        ("found", '"trainable": "', '"trainable": "9'),
        ("about", '"env.host": "', '"env.host": "other-'),
        ("settings", '"cfg/adam_beta1": "0.9"', '"cfg/adam_beta1": "0.8"'),
    ):
        text = client.get_run(run).data.tags[f"canary.more.{name}"]
        assert text.count(then) == 1
        client.set_tag(run, f"canary.more.{name}", text.replace(then, now))
        assert f"the metrics or facts of run {run} changed" in said("audit", "verify", code=1).stdout
        client.set_tag(run, f"canary.more.{name}", text)
    said("audit", "verify")


def test_a_first_version_too_short_to_judge_others_by_is_no_champion(store: str, tmp_path: Path) -> None:
    (tmp_path / "noisy.yaml").write_text("base: smoke\nhard: {learned: false}\n")
    said("register", trained(tmp_path, max_steps=25))
    held = " ".join(said("gate", "mine", "1", "--policy", "noisy.yaml", code=3).stdout.split())
    assert "no champion. Version 1 is not promoted: its runs are too short to judge later ones against: " in held
    assert "has 15 values after warm-up, the policy asks for 20. This policy judges runs from 30 steps on:" in held
    assert 'or choose it all the same: canary bless mine 1 --reason "…"' in held
    said("register", trained(tmp_path, max_steps=35))
    assert said("gate", "mine", "2", "--policy", "noisy.yaml").stdout.startswith("BOOTSTRAP  mine version 2")


def children(client: MlflowClient, session_id: str) -> list[str]:
    return [run.info.run_id for run in child_runs(client, session_id)]


def test_processes_join_the_session_of_their_shell(place: Path) -> None:
    """docs/tracking.md: one process for each seed; in another folder too. An edit of the script is seen without Git."""
    work = Workplace(folder=place)
    (place / "train.py").write_text(
        "import sys\nfrom pathlib import Path\nfrom tiny_trainers import trainer\n"
        "from canary_mlflow import CanaryCallback\n"
        "trainer('', Path('out'), [CanaryCallback()], seed=int(sys.argv[1]), max_steps=40).train()\n"
    )
    (place / "elsewhere").mkdir()
    started = work.canary("session", "start", "mine", MLFLOW_TRACKING_URI=work.uri)
    assert started.returncode == 0, started.stderr
    shell = {VARIABLE: started.stdout.strip(), "MLFLOW_TRACKING_URI": work.uri}
    assert experiment_of(MlflowClient(work.uri), shell[VARIABLE]) == "canary"
    tests = f"{Path(__file__).resolve().parents[1]}{os.pathsep}{work.environment['PYTHONPATH']}"
    for seed, folder in enumerate((place, place / "elsewhere")):
        inside = Workplace(folder=folder)
        done = inside.run(str(place / "train.py"), str(seed), **shell, PYTHONPATH=tests)
        assert done.returncode == 0, done.stderr
        assert f"of session {shell[VARIABLE]}" in done.stderr
        (place / "train.py").write_text((place / "train.py").read_text() + "# edited\n")
    first, second = children(MlflowClient(work.uri), shell[VARIABLE])
    compared = work.canary("compare", first, second, "--policy", "files", MLFLOW_TRACKING_URI=work.uri)
    assert re.search(r"script train\.py [0-9a-f]{12} → train\.py [0-9a-f]{12}", " ".join(compared.stdout.split()))
    assert "Missing on one or both sides: git" in " ".join(compared.stdout.split())
    open_still = work.canary("register", shell[VARIABLE], **shell)
    assert (open_still.returncode, open_still.stderr.count("it is still open")) == (2, 1)
    ended = work.canary("session", "end", **shell)
    assert (ended.returncode, ended.stderr.count(": 2 runs; canary register")) == (0, 1), ended.stderr
    late = work.run(str(place / "train.py"), "2", **shell, PYTHONPATH=tests)
    assert late.returncode != 0
    assert (
        f"UsageError: {VARIABLE}: session {shell[VARIABLE]} has ended (FINISHED); expected an open one" in late.stderr
    )
    assert len(children(MlflowClient(work.uri), shell[VARIABLE])) == 2


def test_a_run_of_the_script_itself_joins(store: str, tmp_path: Path) -> None:
    with session("mine") as opened, mlflow.start_run() as own:
        trainer("", tmp_path / "a", [CanaryCallback()]).train()
        trainer("", tmp_path / "b", [CanaryCallback()]).train()  # one run holds one training
    found = children(MlflowClient(), opened.session_id)
    assert len(found) == 2
    assert own.info.run_id in found


def test_a_run_of_the_script_that_belongs_elsewhere_stays_and_the_session_gets_its_own(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Scripts name an experiment of their own, or nest the trials of a second search: neither ends their training."""
    client = MlflowClient()
    elsewhere = client.create_experiment("the script's")
    with session("mine") as opened:
        with mlflow.start_run(experiment_id=elsewhere) as named:
            trainer("", tmp_path / "a", [CanaryCallback()]).train()
        with mlflow.start_run(), mlflow.start_run(nested=True):
            trainer("", tmp_path / "b", [CanaryCallback()]).train()
        with mlflow.start_run(), mlflow.start_run(nested=True) as nested:
            trainer("", tmp_path / "c", [CanaryCallback()]).train()
    found = children(client, opened.session_id)
    assert len(found) == 3
    for own in (named, nested):
        assert own.info.run_id not in found
        assert "canary.role" not in client.get_run(own.info.run_id).data.tags
    assert f"canary: run {named.info.run_id} is in experiment {elsewhere} and stays there; session" in caplog.text
    assert {client.get_run(run_id).info.status for run_id in found} == {"FINISHED"}
    monkeypatch.setenv(VARIABLE, opened.session_id)
    own_store = f"sqlite:///{tmp_path / 'own.db'}"
    with pytest.raises(UsageError, match=r"start it there \(canary session start NAME --tracking-uri sqlite:///"):
        trainer("", tmp_path / "c", [CanaryCallback(tracking_uri=own_store)]).train()


def test_the_trials_of_an_outer_run_join_the_session_that_then_lies_below_it(store: str, tmp_path: Path) -> None:
    client, trials = MlflowClient(), []
    with session("mine") as opened, mlflow.start_run() as outer:
        for seed in range(2):
            with mlflow.start_run(nested=True) as trial:
                trainer("", tmp_path / str(seed), [CanaryCallback()], seed=seed).train()
            trials.append(trial.info.run_id)
        trainer("", tmp_path / "beside", [CanaryCallback()]).train()  # the outer run is above its session
    found = children(client, opened.session_id)
    assert (set(trials) < set(found), len(found), outer.info.run_id in found) == (True, 3, False)
    assert children(client, outer.info.run_id) == [opened.session_id]
    assert "3 candidate runs" in said("compare", opened.session_id, opened.session_id, "--policy", "files").stdout


def test_a_run_that_no_callback_recorded_is_refused(store: str) -> None:
    """Lightning's logger, or a script's own log_metric: it finished, and would read as a run that broke off."""
    with mlflow.start_run() as plain:
        mlflow.log_metric("train_loss", 1.0, step=1)
    for command in ("compare", "report"):
        words = (plain.info.run_id, plain.info.run_id)[: 2 if command == "compare" else 1]
        told = said(command, *words, "--policy", "files", code=2).stderr
        assert f"run {plain.info.run_id}: no CanaryCallback recorded it" in told


def test_a_session_that_breaks_off_reads_failed(store: str, tmp_path: Path, capfd: Any) -> None:
    with pytest.raises(ZeroDivisionError), session("mine"):
        broken(tmp_path)
    home = MlflowClient().get_experiment_by_name("canary").experiment_id
    run, parent = MlflowClient().search_runs([home])
    assert (run.info.status, parent.info.status) == ("FINISHED", "FAILED")
    assert (
        f"{parent.info.run_id} is in {store}: 1 run, all finished, and the script broke off" in capfd.readouterr().err
    )
    with session("mine") as empty:
        pass
    assert MlflowClient().get_run(empty.session_id).info.status == "FAILED"
    assert "[CanaryCallback()] that begin while it is open; there is nothing to register" in capfd.readouterr().err


def broken(place: Path) -> None:
    trainer("", place, [CanaryCallback()]).train()
    raise ZeroDivisionError


class Fall(TrainerCallback):
    """Breaks off at step 3."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            raise ValueError("no rows left")


def break_off(place: Path, sessions: list[str]) -> None:
    """A session whose second run breaks off; its id is the last of `sessions`."""
    with session("mine") as opened:
        sessions.append(opened.session_id)
        trainer("", place / "a", [CanaryCallback()], seed=1).train()
        trainer("", place / "b", [CanaryCallback(), Fall()], seed=2).train()


def test_a_session_with_a_broken_run_says_so_when_it_ends_and_when_it_is_registered(
    store: str, tmp_path: Path, capfd: Any, caplog: Any
) -> None:
    sessions: list[str] = []
    for _ in range(2):
        with pytest.raises(ValueError, match="no rows left"):
            break_off(tmp_path, sessions)
    ended = capfd.readouterr().err
    assert ended.count(": 2 runs, 1 of them broke off (seed 2: ValueError: no rows left") == 2
    assert f"; see why and train again, or have it judged as it is: canary register {sessions[0]} [--weights" in ended
    told = said("register", sessions[0]).stderr
    assert "version 1 (evidence only, without weights); 1 of its 2 runs broke off (seed 2: ValueError: no rows" in told
    canary_mlflow.register(sessions[1])
    assert "mine version 2: 1 of its 2 runs broke off (seed 2: ValueError: no rows left" in caplog.text


def experiment_of(client: MlflowClient, run_id: str) -> str:
    return str(client.get_experiment(client.get_run(run_id).info.experiment_id).name)


def test_who_named_no_experiment_finds_everything_in_canary(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions, runs of the callback alone, and the script's own runs in a session; every way to name one wins."""
    client = MlflowClient()
    alone = CanaryCallback()
    trainer("", tmp_path / "alone", [alone]).train()
    with session("mine") as opened, mlflow.start_run() as own:
        trainer("", tmp_path / "own", [CanaryCallback()]).train()
    assert alone.run_id is not None
    found = [experiment_of(client, run_id) for run_id in (alone.run_id, opened.session_id, own.info.run_id)]
    assert found == ["canary"] * 3
    assert children(client, opened.session_id) == [own.info.run_id]
    assert mlflow.start_run().info.experiment_id == "0"  # what has nothing to do with us stays where it was
    mlflow.end_run()
    with session("mine", experiment="by argument") as opened:
        assert experiment_of(client, opened.session_id) == "by argument"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "by variable")
    with session("mine") as opened:
        assert experiment_of(client, opened.session_id) == "by variable"
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", None)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "0")  # to be put back: set_experiment sets it
    mlflow.set_experiment("by call")
    with session("mine") as opened:
        assert experiment_of(client, opened.session_id) == "by call"
    mlflow.set_experiment("Default")  # named is named
    with session("mine") as opened:
        assert experiment_of(client, opened.session_id) == "Default"


def test_a_mistake_in_a_script_is_one_line_below_the_scripts_own(
    store: str, tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traceback ends where the script called us, without MLflow's errors behind ours; a user's own is whole."""
    made = trained(tmp_path / "out", seeds=1)
    calls: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: session("a/b").__enter__(), "model name 'a/b': expected a name without '/' and ':'"),
        (lambda: canary_mlflow.register("nosuch"), "run 'nosuch': not in"),
        (lambda: canary_mlflow.register(made, weights="missing"), f"canary register {made} --weights FOLDER"),
        (lambda: canary_mlflow.register(made, str(weights)), "weights are given to register (weights=…, --weights)"),
        (lambda: CanaryCallback(watch="nosuch"), "policy 'nosuch' not found"),
        (lambda: canary_mlflow.gate("nosuch", 1), "nosuch"),
    )
    for call, line in calls:
        with pytest.raises(UsageError) as raised:
            call()
        shown = "".join(traceback.format_exception(raised.value)).splitlines()
        assert line in shown[-1]
        ours = [entry for entry in shown if entry.startswith("  File ") and "/canary_mlflow/" in entry]
        assert len([entry for entry in ours if "/tests/" not in entry]) == 1, shown
        assert not any("another exception" in entry or "direct cause" in entry for entry in shown)
    (gone := tmp_path / "gone").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(gone)
        gone.rmdir()
        with pytest.raises(CanaryError) as deleted:
            CanaryCallback()
        with pytest.raises(FileNotFoundError, match="theirs"):  # another file that is missing is none of ours
            canary_mlflow.errors.plainly(lambda: patch.undo() or (tmp_path / "theirs").read_text())()
    assert str(deleted.value).startswith("the working folder: it was deleted; expected one that is there")
    assert (deleted.value.__cause__, deleted.value.__suppress_context__) == (None, True)
    with pytest.raises(ZeroDivisionError) as own, session("mine"):
        broken(tmp_path / "broken")
    assert [entry.name for entry in own.traceback][-1] == "broken"
    assert own.value.__context__ is None


def test_what_cannot_become_a_version_is_said_before_anything_is_made(
    store: str, tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trained(tmp_path / "out", seeds=1)
    empty = tmp_path / "empty"
    empty.mkdir()
    with session("mine") as unused:
        pass
    for words, line in (
        ((made, "--weights", "nowhere"), "/nowhere: not there; expected the folder that trainer.save_model()"),
        ((made, "--weights", str(weights / "config.json")), "config.json: a file; expected the folder"),
        ((made, "--weights", str(empty)), "found nothing; expected the folder"),
        ((unused.session_id,), "no runs in it; expected trainings with callbacks=[CanaryCallback()]"),
        (("nosuch",), "run 'nosuch': not in"),
    ):
        assert line in said("register", *words, code=2).stderr
    with pytest.raises(MlflowException):
        MlflowClient().get_registered_model("mine")
    told = said("register", made)
    assert "mine version 1 (evidence only, without weights); canary gate mine 1" in told.stderr
    assert MlflowClient().get_model_version("mine", "1").tags["canary.weights"] == "none"
    assert "it is the evidence of mine version 1 already" in said("register", made, "other", code=2).stderr
    with pytest.raises(UsageError, match="expected a name without '/' and ':'"), session("a/b"):
        pass
    with pytest.raises(UsageError, match="a session takes one of the shipped ones"), session("mine", policy="x.yaml"):
        pass
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="one of 2 ranks"), session("mine"):
        pass
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv(VARIABLE, made)
    with pytest.raises(UsageError, match=f"names session {made} already"), session("mine"):
        pass
    assert "has ended (FINISHED)" in said("session", "end", code=2).stderr
    for unset in ("", None):
        monkeypatch.setenv(VARIABLE, unset) if unset is not None else monkeypatch.delenv(VARIABLE)
        (line,) = said("session", "end", code=2).stderr.splitlines()
        assert line.startswith("canary: session end: found none, and CANARY_SESSION is not set; expected the id that")
    assert "expected a name without '/' and ':'" in said("register", made, str(weights), code=2).stderr


def test_the_same_script_elsewhere_does_the_same_work(store: str, tiny: str, tmp_path: Path) -> None:
    """Another folder of the same model, another order of the same rows, another LoRA rank; then other rows."""
    other = shutil.copytree(tiny, tmp_path / "moved")
    with session("mine") as opened:
        sft(tiny, tmp_path / "a", [CanaryCallback()], LoraConfig(r=2)).train()
        again = sft(str(other), tmp_path / "b", [CanaryCallback()], LoraConfig(r=4))
        again.train_dataset = again.train_dataset.shuffle(seed=1)
        again.train()
        less = sft(tiny, tmp_path / "c", [CanaryCallback()], LoraConfig(r=2))
        less.train_dataset = less.train_dataset.select(range(79))
        less.train()
    client = MlflowClient()
    found = [read_runs(client, [run_id])[0].workload for run_id in children(client, opened.session_id)]
    assert found[0] == found[1]
    assert found[0]["model"].startswith("GPTNeoXForCausalLM num_hidden_layers 2 hidden_size 16 vocab_size")
    assert {key for key in found[0] if found[0][key] != found[2][key]} == {"train_data"}
    assert re.fullmatch(r"80 rows, [0-9a-f]{16}", found[0]["train_data"])


def test_what_a_library_says_of_a_faster_kernel_is_no_news_of_ours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    talker = logging.getLogger("bitsandbytes.backends.cpu.ops")

    def talks(name: str) -> Any:
        talker.warning("Failed to load CPU gemm_4bit_forward from kernels-community")
        return importlib.import_module(name)

    caplog.set_level(logging.WARNING, logger=talker.name)  # a training in this process has silenced it for good
    monkeypatch.setattr("canary_mlflow.import_module", talks)
    assert canary_mlflow.CanaryCallback is CanaryCallback
    assert not caplog.records
    talker.warning("this the user's own process says as before")
    assert len(caplog.records) == 1


def test_a_model_that_was_built_is_known_by_its_sizes() -> None:
    small, large = (SimpleNamespace(num_hidden_layers=2, hidden_size=size, vocab_size=99) for size in (64, 128))
    assert shape_of(small, small) == "SimpleNamespace num_hidden_layers 2 hidden_size 64 vocab_size 99"
    assert shape_of(large, large) != shape_of(small, small)
    assert shape_of(object(), None) == "object"


def test_a_trainer_made_from_trls_tells_the_algorithm(shared: Any, tmp_path: Path) -> None:
    """LLaMA-Factory's CustomDPOTrainer is made from TRL's and takes Transformers' arguments."""
    from trl import DPOTrainer

    canary = CanaryCallback(tracking_uri=shared.uri, experiment="recorded")
    training = trainer("", tmp_path, [canary], max_steps=2)
    own = {name: vars(Trainer)[name] for name in vars(DPOTrainer).keys() & vars(Trainer).keys()}
    training.__class__ = type("CustomDPOTrainer", (DPOTrainer,), own)
    training.train()
    assert canary.run_id is not None
    (run,) = read_runs(shared.client, [canary.run_id])
    assert (run.completed, run.workload["algo"]) == (True, "dpo")


def test_a_length_by_its_name_in_older_trl_is_the_same_work(shared: Any, tmp_path: Path) -> None:
    """SFTConfig had `max_seq_length` until TRL 0.15: an upgrade that renames an argument changes no work."""
    lengths = []
    for name in ("max_seq_length", "max_length"):
        canary = CanaryCallback(tracking_uri=shared.uri, experiment="recorded")
        training = trainer("", tmp_path / name, [canary], max_steps=2)
        setattr(training.args, name, 96)
        training.train()
        assert canary.run_id is not None
        lengths.append(read_runs(shared.client, [canary.run_id])[0].workload["max_length"])
    assert lengths == ["96", "96"]


def test_held_out_sets_by_name_are_judged_by_their_mean(shared: Any, tiny: str, tmp_path: Path) -> None:
    canary = CanaryCallback(tracking_uri=shared.uri, experiment="recorded")
    training = sft(tiny, tmp_path, [canary], eval_strategy="steps", eval_steps=4)
    rows = training.train_dataset
    training.eval_dataset = {"docs": rows.select(range(8)), "more_docs": rows.select(range(8, 40))}
    training.train()
    training.evaluate()
    assert canary.run_id is not None
    (run,) = read_runs(shared.client, [canary.run_id])
    together, *apart = (run.series[name] for name in ("eval_loss", "trl/eval_docs_loss", "trl/eval_more_docs_loss"))
    assert together.steps.tolist() == [4, 8]
    assert together.values == pytest.approx(sum(one.values for one in apart) / 2)
