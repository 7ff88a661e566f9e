"""Both journeys through the real commands: train, register, gate; fault, block; again, identical."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from receiver import Receiver
from workplace import Workplace

from canary_mlflow.tracking.describing.compact import expanded

# A story is four sessions; on a busy machine they take longer than one test may.
pytestmark = pytest.mark.timeout(1200)

SHORT = {
    "sft": ["train.max_steps=40", "repeats=2"],
    # Of so many runs the watch has a band, whether the second passes or not; more rows would be prepared and not seen.
    "dpo": ["train.max_steps=40", "repeats=3", "tier.train_rows=320", "tier.eval_rows=16"],
    "ppo": ["train.max_steps=32", "repeats=2"],
}
# The first look decides next to nothing, so that the second is taken.
TOP_UP = {"dpo": ["repeats=2", "gate.top_up=true", "gate.looks.shares=[0.001,0.999]"]}
SECOND = {**TOP_UP, "sft": [], "ppo": ["repeats=1"]}  # PPO's runs are long, and one shows that nothing blocks
NAN = ["repeats=1", "fault=nan_batch", "fault.step=10", "notify=webhook"]
# A version of a fault needs runs that end.
FAST = ["repeats=1", "fault=lr_high", "watch.on_critical=warn", "notify=slack", "notify.about=[BLOCK,CRITICAL]"]


class Story:
    """One folder in which a canary is bootstrapped, passes, and is broken: with `whole` in both ways, as DPO always."""

    def __init__(self, folder: Path, algo: str, whole: bool) -> None:
        self.algo = algo
        self.model = f"{algo}-tiny-neox-preferences-smoke"
        self.place = Workplace(folder=folder)
        words = [f"algo={algo}", *SHORT[algo]]
        whole = whole or algo == "dpo"
        with Receiver() as taker, Receiver(*[404] * 9) as refuser:
            hooks = {"CANARY_NOTIFY_URL": taker.url, "SLACK_WEBHOOK_URL": refuser.url}
            self.first = self.place.train(*words, **hooks)
            self.second = self.place.train(*words, *SECOND[algo], **hooks)
            self.unasked = [*taker.got, *refuser.got]
            self.nan = self.place.train(*words, *NAN, **hooks) if whole or algo == "ppo" else None  # PPO raises at it
            self.fast = self.place.train(*words, *FAST, **hooks) if whole else None
            self.told, self.refused = taker.got, refuser.got
        self.client = MlflowClient(self.place.uri)

    def runs(self, role: str) -> list[Run]:
        experiment = self.client.get_experiment_by_name("canary").experiment_id
        found = self.client.search_runs([experiment], f"tags.`canary.role` = '{role}'", order_by=["start_time ASC"])
        return list(found)

    def champion(self) -> str:
        return str(self.client.get_model_version_by_alias(self.model, "champion").version)

    def kept(self) -> str:
        """Which version is champion after the second session: that one where it passed, on as many runs as the first
        has, and PPO's had fewer."""
        return "2" if self.second.returncode == 0 and self.algo != "ppo" else "1"

    def losses(self, run: Run) -> list[float]:
        history = self.client.get_metric_history(run.info.run_id, "stability/loss")
        return [point.value for point in sorted(history, key=lambda point: point.step)]


@pytest.fixture(
    scope="module", params=["dpo", *(pytest.param(algo, marks=pytest.mark.full) for algo in ("ppo", "sft"))]
)
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp(request.param), request.param, request.config.getoption("--full"))


def test_first_version_is_champion_by_bootstrap_and_not_by_pass(story: Story) -> None:
    assert story.first.returncode == 0, story.first.stderr
    tags = story.client.get_model_version(story.model, "1").tags
    assert tags["canary.verdict"] == "bootstrap"
    assert story.first.stdout.startswith("BOOTSTRAP "), "the verdict alone is on stdout"
    assert "BOOTSTRAP" not in story.first.stderr
    session = story.runs("session")[0]
    assert session.info.run_name == f"bootstrap v1 · {story.algo} tiny-neox smoke"


def test_unchanged_code_does_not_block(story: Story) -> None:
    # PASS needs three runs a side on a noisy machine (benchmarks/smoke.py); two may be INCONCLUSIVE.
    assert story.second.returncode in (0, 3), story.second.stderr
    assert story.client.get_model_version(story.model, "2").tags["canary.verdict"] in ("PASS", "INCONCLUSIVE")


def test_a_session_that_tops_up_adds_a_run_of_its_own(story: Story) -> None:
    if story.algo not in TOP_UP:
        pytest.skip("one algorithm is enough")
    session = story.runs("session")[1]
    query = f"tags.`mlflow.parentRunId` = '{session.info.run_id}'"
    made = story.client.search_runs([session.info.experiment_id], query)
    assert sorted(run.data.tags["canary.seed"] for run in made) == ["0", "1", "2"]
    assert re.fullmatch(r"1: 2\.\w+ 3\.\w+", session.data.tags["canary.looks"])
    verdict = json.loads(Path(story.client.download_artifacts(session.info.run_id, "verdict.json")).read_text())
    assert (verdict["verdict"]["look"], len(verdict["verdict"]["candidate_runs"])) == (2, 3)


@pytest.mark.parametrize("fault", ["nan", "fast"])
def test_faults_block_and_the_champion_stays(story: Story, fault: str) -> None:
    done = getattr(story, fault)
    if done is None:
        pytest.skip("of every algorithm with --full")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("BLOCK ")
    assert story.champion() == story.kept()


def struck(story: Story, fault: str) -> list[Run]:
    experiment = story.client.get_experiment_by_name("canary").experiment_id
    query = f"tags.`canary.fault` = '{fault}' and tags.`canary.role` = 'run'"
    return list(story.client.search_runs([experiment], query, order_by=["start_time ASC"]))


def test_what_a_fault_was_put_into_is_marked(story: Story) -> None:
    for run in (*struck(story, "nan_batch"), *struck(story, "lr_high"), *story.runs("session")[2:]):
        assert run.data.tags["canary.not_promotable"] == f"fault {run.data.tags['canary.fault']}"
    if story.fast is None:
        return
    tags = story.client.get_model_version(story.model, "3").tags  # of the session whose runs reached their end
    assert tags["canary.not_promotable"] == "its runs were made with fault lr_high"
    assert not any("canary.not_promotable" in run.data.tags for run in struck(story, "none"))


def test_the_watch_warns_of_a_lost_run_and_the_report_says_so(story: Story) -> None:
    if story.fast is None:
        pytest.skip("of every algorithm with --full")
    assert all(int(expanded(run.data.tags)["canary.watch.warnings"]) > 0 for run in struck(story, "lr_high"))
    assert "\n  warnings    seed" in story.fast.stdout


def test_the_watch_ends_a_lost_run_and_the_verdict_says_so(story: Story) -> None:
    if story.nan is None:
        pytest.skip("of every algorithm with --full")
    run = struck(story, "nan_batch")[0]
    assert run.info.status == "FAILED"
    assert run.data.tags["canary.watch.level"] == "stopped"
    assert int(expanded(run.data.tags)["canary.watch.steps_saved"]) > 0
    assert "model" not in {item.path for item in story.client.list_artifacts(run.info.run_id)}
    assert "No version was registered." in " ".join(story.nan.stdout.split())
    if story.algo != "ppo":  # PPO itself raises at the first value that is not finite
        assert re.search(
            r"Nonfinite: 1 of 1 runs: 2 NaN steps, first at step 11 \(loss\); also not completed, not learned, watch\.",
            " ".join(story.nan.stdout.split()),
        )


def test_a_session_tells_whom_it_was_asked_to_and_keeps_the_address_to_itself(story: Story) -> None:
    assert story.unasked == []
    if story.nan is None or story.fast is None:
        pytest.skip("of every algorithm with --full")
    events = [one.event for one in story.told]
    assert len(set(events)) == len(events) == len({one.body["id"] for one in story.told})
    assert "canary.watch_stop" in events or story.algo == "ppo"
    (verdict,) = [one.body for one in story.told if one.event == "canary.verdict"]
    assert verdict["text"].startswith("BLOCK ")
    assert story.refused, "a receiver that takes nothing was asked"
    assert story.fast.stderr.count("was not delivered: http://127.0.0.1:") == 1
    for file in story.place.folder.rglob("*"):
        assert not file.is_file() or b"secret-path" not in file.read_bytes(), file
    assert "secret-path" not in "".join(done.stdout + done.stderr for done in (story.nan, story.fast))


def test_no_run_is_left_running(story: Story) -> None:
    runs = story.runs("run") + story.runs("session")
    assert {run.info.status for run in runs} <= {"FINISHED", "FAILED"}
    made = [story.first, story.second, story.nan, story.fast]
    assert len(story.runs("session")) == len([session for session in made if session is not None])


def test_same_seed_same_losses_other_seed_others(story: Story) -> None:
    first, other, *later = struck(story, "none")
    again = next(run for run in later if run.data.tags["canary.seed"] == first.data.tags["canary.seed"])
    assert story.losses(first) == story.losses(again)
    assert story.losses(first) != story.losses(other)
    assert all(math.isfinite(value) for value in story.losses(first))
    moved = [expanded(run.data.tags)["canary.facts.layer_drift"] for run in (first, again, other)]
    assert moved[0] == moved[1] != moved[2]
    assert {"gpt_neox.layers.0", "gpt_neox.layers.1"} <= {
        layer.removeprefix("policy.") for layer in json.loads(moved[0])
    }


def test_every_healthy_run_learned(story: Story) -> None:
    for run in struck(story, "none"):
        assert expanded(run.data.tags)["canary.learned"] == "true", expanded(run.data.tags)["canary.learned_reason"]


def test_nan_is_recorded_at_its_step_and_counted(story: Story) -> None:
    if story.nan is None:
        pytest.skip("of every algorithm with --full")
    run = struck(story, "nan_batch")[0]
    assert int(expanded(run.data.tags)["canary.nan_steps"]) > 0
    history = story.client.get_metric_history(run.info.run_id, "stability/nonfinite")
    assert min(point.step for point in history if point.value > 0) == 11  # the 11th optimizer step took it in


def test_the_report_stands_in_mlflow(story: Story) -> None:
    session = story.runs("session")[1]
    note = session.data.tags["mlflow.note.content"]
    assert session.data.tags["canary.verdict"] in note
    artifacts = {item.path for item in story.client.list_artifacts(session.info.run_id)}
    assert {"report.md", "report.html", "verdict.json"} <= artifacts
    assert story.client.get_model_version(story.model, "2").description
    verdict = json.loads(Path(story.client.download_artifacts(session.info.run_id, "verdict.json")).read_text())
    assert verdict["model"] == story.model


def test_a_run_leaves_weights_and_metrics_json(story: Story) -> None:
    run = story.runs("run")[0]
    artifacts = {item.path for item in story.client.list_artifacts(run.info.run_id)}
    assert {"metrics.json", "model"} <= artifacts
    weights = {Path(item.path).name for item in story.client.list_artifacts(run.info.run_id, "model/model")}
    assert "model.safetensors" in weights
    metrics = json.loads(Path(story.client.download_artifacts(run.info.run_id, "metrics.json")).read_text())
    assert metrics["perf"]["step_time"]["mean"] > 0
    assert metrics["perf"]["max_mem_mb"] > 100
    assert metrics["stability"]["nan_steps"] == 0
    assert math.isfinite(metrics["stability"]["final_loss"])


def test_the_champion_loads_as_the_screen_says(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    champion = f"models:/{story.model}@champion"
    assert champion in story.first.stdout.replace("\n", "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", story.place.uri)
    monkeypatch.chdir(story.place.folder)
    pipeline = mlflow.transformers.load_model(champion)
    (said,) = pipeline("Q: How do I bake bread?", max_new_tokens=8)
    assert said["generated_text"].startswith("Q: How do I bake bread?")
    (answer,) = mlflow.pyfunc.load_model(champion).predict(["Q: How do I bake bread?"])
    assert isinstance(answer, str)


def test_gate_and_compare_from_the_command_line(story: Story) -> None:
    if story.algo != "dpo":
        pytest.skip("one algorithm is enough")
    compared = story.place.canary("compare", f"{story.model}/1", f"{story.model}/2", "--json")
    assert compared.returncode == 0, compared.stderr
    assert json.loads(compared.stdout)["verdict"]["checks"]
    again = story.place.canary("gate", story.model, story.champion())
    assert again.returncode == 2  # it is the champion already
    assert len(again.stderr.strip().splitlines()) == 1
