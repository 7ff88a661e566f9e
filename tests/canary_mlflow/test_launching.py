"""Single runs through MLflow Projects, from the code that was recorded: this checkout, or a worktree of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from packaging.requirements import Requirement
from workplace import Workplace

from canary_mlflow.cli import canary
from canary_mlflow.errors import NoSource, UsageError
from canary_mlflow.launching.added_runs import AddedRuns, run_champion
from canary_mlflow.launching.projects import ProjectRun, launch
from canary_mlflow.launching.runs import Here, Result, make_one
from canary_mlflow.launching.sources import Source, commit_of, installer, source_of, worktree
from canary_mlflow.registry.acts.by_hand import bless
from canary_mlflow.tracking.describing.fingerprint import git, hardware, packages
from canary_mlflow.tracking.reading.histories import fresh_runs, read_version, session_runs
from canary_mlflow.tracking.signals import Terminated
from canary_mlflow.tracking.stores.session import child_runs

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("gates", "canary_mlflow", "training", "conf", "MLproject", "python_env.yaml", "requirements.txt")


def commit(folder: Path, message: str) -> str:
    """Everything in the folder, as one commit."""
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    for command in (("add", "-A"), (*who, "commit", "-q", "-m", message)):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    return git(folder)["git_commit"]


@pytest.fixture(scope="module")
def commits() -> list[str]:
    return []


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, commits: list[str]) -> Path:
    """A checkout of this code with three commits: another project, this one, this one with a change."""
    folder = tmp_path_factory.mktemp("project")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "MLproject").write_text("name: canary_mlflow\nentry_points: {main: {command: 'true'}}\n")
    commits.append(commit(folder, "no single runs yet"))
    for part in PARTS:
        place = ROOT / part  # with what is compiled of it, which each process that starts there would make anew
        (partial(shutil.copytree, symlinks=True) if place.is_dir() else shutil.copy)(place, folder / part)
    (folder / ".gitignore").write_text("__pycache__\n")
    commits.append(commit(folder, "single runs"))
    (folder / "README.md").write_text("changed\n")
    commits.append(commit(folder, "a change"))
    return folder


@pytest.mark.parametrize(
    ("word", "said", "dry"),
    [
        ("bogus=1", "unknown key 'bogus'; expected one of", []),
        ("algo=sftt", "unknown algo 'sftt'", ["--dry-run"]),
        # Every day each word and each way, in the two above.
        pytest.param("bogus=1", "unknown key 'bogus'; expected one of", ["--dry-run"], marks=pytest.mark.full),
        pytest.param("algo=sftt", "unknown algo 'sftt'", [], marks=pytest.mark.full),
    ],
)
def test_overrides_that_a_revision_does_not_take_are_refused_before_any_run(
    project: Path,
    commits: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    said: str,
    dry: list[str],
) -> None:
    monkeypatch.chdir(project)
    store = f"sqlite:///{tmp_path}/mlflow.db"
    sides = ["--baseline", commits[1], "--candidate", commits[2]]
    result = CliRunner().invoke(canary, ["ab", word, *dry, *sides, "--tracking-uri", store])
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert f"--baseline {commits[1][:10]}" in result.output
    assert said in result.output
    assert not MlflowClient(store).search_experiments(filter_string="name = 'canary'")


def dry(commits: list[str], *words: str) -> str:
    sides = ["--baseline", commits[1][:12], "--candidate", "HEAD"]
    return CliRunner().invoke(canary, ["ab", *sides, "--policy", "perf", "--dry-run", *words]).output


def test_a_dry_run_of_two_revisions(project: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    found = json.loads(dry(commits, "--json"))
    assert found["baseline"] == {"name": commits[1][:12], "commit": commits[1]}
    assert (found["candidate"]["commit"], found["policy"], found["runs"]) == (commits[2], "perf", [6, 10])


@pytest.mark.full  # the same facts as above, whose two processes take ten seconds
def test_a_dry_run_in_words(project: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    assert "would make 6 or 10 runs" in dry(commits)


@pytest.mark.parametrize("name", ["", "-x", "no-such-branch"])
def test_a_revision_that_there_is_not_is_one_line(project: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(project)
    result = CliRunner().invoke(canary, ["ab", f"--baseline={name}", "--candidate", "HEAD", "--dry-run"])
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert "--baseline" in result.output


@pytest.fixture
def recorded_runs(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that `canary ab` records instead of trains, its candidate's 15 % slower: which, in their order."""
    calls: list[str] = []

    def record(client: MlflowClient, spec: ProjectRun) -> Result:
        side = client.get_run(spec.session).data.tags["mlflow.runName"].partition(":")[0]
        calls.append(f"{side[0]}{spec.seed}")
        slower = 1.15 if side == "candidate" else 1.0
        here = {f"canary.hardware.{key}": value for key, value in hardware("cpu").items()}
        run_id = recorded.run(spec.session, spec.seed, slower=slower, tags=here, nan_at=None, without=())
        return Result(seed=spec.seed, run_id=run_id)

    monkeypatch.setattr("canary_mlflow.launching.projects.launch", record)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "recorded")
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # as the command's own process does it
    return calls


def ab(recorded: Any, *words: str) -> Any:
    return CliRunner().invoke(canary, ["ab", *words, "--tracking-uri", recorded.uri])


@pytest.mark.full
def test_a_comparison_that_decided_nothing_goes_on_with_what_it_has(
    project: Path, commits: list[str], recorded: Any, recorded_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    first = ab(recorded, "--baseline", commits[1], "--candidate", commits[2], "algo=sft")
    assert first.exit_code == 3, first.output
    assert recorded_runs == ["b0", "c0", "c1", "b1", "b2", "c2"]
    ((session, pairs),) = set(re.findall(r"canary ab --continue (\w+) --pairs (\d+)", " ".join(first.output.split())))
    assert int(pairs) > 3

    spent = ab(recorded, "--continue", session)
    assert (spent.exit_code, len(spent.output.splitlines())) == (2, 1)
    assert "its plan is spent (judged at 3 pairs)" in spent.output
    assert "--pairs 3: expected at least 4" in ab(recorded, "--continue", session, "--pairs", "3").output
    assert "found OVERRIDES; expected none" in ab(recorded, "algo=sft", "--continue", session).output

    second = ab(recorded, "--continue", session, "--pairs", "5", "--json")
    assert recorded_runs[6:] == ["c3", "b3", "b4", "c4"]
    verdict = json.loads(second.stdout)["verdict"]
    assert (len(verdict["baseline_runs"]), len(verdict["candidate_runs"])) == (5, 5)
    assert any("this look adds 0.5 of the error levels" in note for note in verdict["notes"])
    assert verdict["policy"]["alpha_block"] == 0.005
    tags = recorded.client.get_run(session).data.tags
    assert re.fullmatch(r"baseline: 3\.\w+ 5\.\w+", tags["canary.looks"])


@pytest.mark.full
def test_a_comparison_that_was_stopped_makes_what_its_look_lacks(
    project: Path, commits: list[str], recorded: Any, recorded_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    made = recorded.run

    def stopped(*arguments: Any, **words: Any) -> str:
        if len(recorded_runs) == 4:
            raise Terminated(signal.SIGTERM)
        return str(made(*arguments, **words))

    monkeypatch.setattr(recorded, "run", stopped)
    first = ab(recorded, "--baseline", commits[1], "--candidate", commits[2])
    assert first.exit_code == 4, first.output
    session = re.search(r"if it is stopped: canary ab --continue (\w+)", first.output)[1]  # type: ignore[index]
    monkeypatch.setattr(recorded, "run", made)

    again = ab(recorded, "--continue", session, "--json")
    assert recorded_runs == ["b0", "c0", "c1", "b1", "b1", "b2", "c2"]
    verdict = json.loads(again.stdout)["verdict"]
    assert len(verdict["candidate_runs"]) == 3
    assert verdict["policy"]["alpha_block"] == 0.01  # the first look, with all of the level
    assert recorded.client.get_run(session).info.status == "FINISHED"


def test_another_session_is_not_gone_on_with(recorded: Any, usual_session: str) -> None:
    result = ab(recorded, "--continue", usual_session)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert "found another run; expected the session that `canary ab` named" in result.output


@pytest.mark.full
def test_sigterm_ends_a_comparison_of_revisions_and_all_that_it_started(
    project: Path, commits: list[str], workplace: Workplace
) -> None:
    sides = ["--baseline", commits[1], "--candidate", commits[2]]
    words = ["algo=sft", "train.max_steps=100000", "--tracking-uri", workplace.uri]
    process = subprocess.Popen(
        [sys.executable, "-m", "canary_mlflow.cli", "ab", *words, *sides],
        cwd=project,
        env=workplace.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (started := trainings(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "canary: stopped by SIGTERM; `canary ab` can be run again" in err
    assert started
    assert psutil.wait_procs(started, timeout=10)[1] == []
    assert len(worktrees(project)) == 1
    client = MlflowClient(workplace.uri)
    found = client.search_runs([item.experiment_id for item in client.search_experiments()])
    assert {run.info.status for run in found} == {"FAILED"}


@pytest.mark.full  # every day: one that SIGTERM ends, above, and test_leftovers.py
def test_a_comparison_that_is_killed_leaves_no_process_and_what_else_it_leaves_goes(
    project: Path, commits: list[str], workplace: Workplace, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    environment = {**workplace.environment, "TMPDIR": str(tmp_path / "tmp"), "MLFLOW_TRACKING_URI": workplace.uri}
    sides = ["--baseline", commits[1], "--candidate", commits[2]]
    process = subprocess.Popen(
        [sys.executable, "-m", "canary_mlflow.cli", "ab", "algo=sft", "train.max_steps=100000", *sides],
        cwd=project,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (started := trainings(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.kill()
    process.wait()
    assert started
    assert psutil.wait_procs(started, timeout=30)[1] == []
    assert len(worktrees(project)) == 3
    fixed = workplace.canary("doctor", "--fix", **{key: environment[key] for key in ("TMPDIR", "MLFLOW_TRACKING_URI")})
    assert "runs ended as FAILED" in fixed.stdout, fixed.stdout
    assert len(worktrees(project)) == 1
    assert list((tmp_path / "tmp").glob("canary-*")) == []
    client = MlflowClient(workplace.uri)
    found = client.search_runs([item.experiment_id for item in client.search_experiments()])
    assert {run.info.status for run in found} == {"FAILED"}


def worktrees(project: Path) -> list[str]:
    """The folders that git knows as checkouts of the project."""
    done = subprocess.run(["git", "-C", str(project), "worktree", "list"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def trainings(pid: int) -> list[psutil.Process]:
    """The processes under one that train: those of runs, which were told so by their session."""
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a git that has ended since
            found += [each] if "canary_mlflow.training.worker" in " ".join(each.cmdline()) else []
    return found


def recorded_at(project: Path, commit: str, **changes: str) -> dict[str, str]:
    return {**packages(), "git_commit": commit, "git_dirty": "false", **changes}


def test_this_checkout_where_it_is_the_code_and_a_worktree_where_not(project: Path, commits: list[str]) -> None:
    with source_of(project, recorded_at(project, commits[2]), "v") as found:
        assert (found.folder, found.here, found.env_manager) == (project, True, "local")
    with source_of(project, recorded_at(project, commits[1]), "v") as found:
        assert (found.here, found.folder != project, (found.folder / "README.md").exists()) == (False, True, False)
    assert not found.folder.exists()
    assert commit_of(project, "HEAD~1", "v") == commits[1]


def test_other_packages_than_those_here_are_installed_from_the_lock(project: Path, commits: list[str]) -> None:
    with source_of(project, recorded_at(project, commits[2], torch="1.0.0"), "v") as found:
        assert found.env_manager in ("uv", "virtualenv")


def test_uv_beside_this_python_installs_them_and_where_nothing_can_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(NoSource, match=r"v: its packages differ from those here, .* expected one; pip install uv"):
        installer("v")
    (tmp_path / "uv").touch(mode=0o755)  # as in an environment that nobody has activated
    assert installer("v") == "uv"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"git_commit": "unknown"}, "its runs carry no git commit"),
        ({"git_dirty": "true", "git_diff": "12"}, "were made with changes that commit"),
        ({"git_commit": "1" * 40}, "is not in .* and cannot be fetched"),
        ({"git_commit": "--upload-pack=x"}, "git "),
    ],
)
def test_code_that_cannot_be_had_is_said_in_one_line(project, commits, changes, message) -> None:
    with (
        pytest.raises(NoSource, match=message) as refused,
        source_of(project, {**recorded_at(project, commits[1]), **changes}, "champion version 4"),
    ):
        pytest.fail("it was had")
    assert str(refused.value).startswith("champion version 4: ")
    assert "\n" not in str(refused.value)


def test_a_commit_from_before_single_runs_is_said(project: Path, commits: list[str]) -> None:
    with (
        pytest.raises(NoSource, match="has no entry point 'again'"),
        source_of(project, recorded_at(project, commits[0]), "v"),
    ):
        pytest.fail("it was had")


def test_a_change_that_is_not_committed_is_known_again(project: Path, commits: list[str]) -> None:
    readme = project / "README.md"
    readme.write_text("not committed\n")
    try:
        now = git(project)
        assert now["git_dirty"] == "true"
        with source_of(project, {**packages(), **now}, "v") as found:
            assert found.here
        readme.write_text("changed again\n")
        assert git(project)["git_diff"] != now["git_diff"]
    finally:
        readme.write_text("changed\n")


TINY = ("algo=sft", "train.max_steps=3", "tier.train_rows=32", "tier.eval_rows=8", "tracking.system_metrics=false")


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    """Of a tiny canary."""
    from canary_mlflow.training.command_line import expand, parse
    from canary_mlflow.training.compose import check, register_schemas
    from canary_mlflow.training.plain import to_plain

    register_schemas()
    return to_plain(check(parse(expand(list(TINY))))[0])


def work_of(config: dict[str, Any]) -> dict[str, str]:
    """What a run of it says of its work."""
    from canary_mlflow.training.compose import to_config
    from canary_mlflow.training.devices import settle
    from canary_mlflow.training.parts import prepare_inputs
    from canary_mlflow.training.workload import describe

    canary = to_config(config)
    work = describe(canary, prepare_inputs(canary), settle(canary.hardware))
    return {f"canary.workload.{key}": value for key, value in work.items()}


@pytest.fixture
def broken(project: Path) -> Iterator[int]:
    """The checkout with an exception in the code that trains, not committed; the line that raises it."""
    code = project / "training/algorithms/sft.py"
    before = code.read_text()
    line = "    return SFTTrainer("
    code.write_text(before.replace(line, f"    parts.upgraded()\n{line}"))
    yield before.splitlines().index(line) + 1
    code.write_text(before)


@pytest.mark.full  # four processes that load all libraries; test_revisions.py has the same of two runs every day
def test_an_exception_of_the_candidates_code_blocks_it(
    recorded: Any, project: Path, commits: list[str], config: dict[str, Any], broken: int, workplace: Workplace
) -> None:
    """It comes again in a rerun, and the champion's code, run beside from a worktree of its commit, goes through."""
    facts = {f"canary.env.{key}": value for key, value in recorded_at(project, commits[1]).items()}
    here = {f"canary.hardware.{key}": value for key, value in hardware("cpu").items()}
    made = recorded.session(runs=1, tags=facts | here | work_of(config))
    recorded.client.log_dict(recorded.children(made)[0], config, "config.yaml")
    recorded.client.delete_tag(recorded.children(made)[0], "canary.workload.tier")  # no part of a canary's own
    bless(recorded.client, recorded.model, recorded.register(made), "a baseline for the test")
    words = [*TINY, "repeats=1", f"model_name={recorded.model}", f"tracking.uri={recorded.uri}"]
    done = subprocess.run(
        [sys.executable, "-m", "training", *words, f"hydra.run.dir={workplace.folder}"],
        cwd=project,
        env={**workplace.environment, "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    place = f"AttributeError at training/algorithms/sft.py:{broken} in build"
    screen = " ".join(done.stdout.split())
    assert f"{place} ended 2 of 2 runs of seed 0; the baseline's run of that seed, made beside on this host" in screen
    assert "Traceback" not in done.stderr
    (session,) = recorded.client.search_runs(
        [item.experiment_id for item in recorded.client.search_experiments()],
        f"tags.`canary.model_name` = '{recorded.model}'",
    )
    assert session.data.tags["canary.verdict"] == "BLOCK"
    assert place in session.data.tags["mlflow.note.content"]
    children = child_runs(recorded.client, session.info.run_id)
    found = [(run.data.tags["canary.role"], run.info.status) for run in children]
    assert found == [("run", "FAILED"), ("run", "FAILED"), ("baseline", "FINISHED")]
    assert (recorded.champion(), len(recorded.client.search_model_versions(f"name='{recorded.model}'"))) == ("1", 1)


@pytest.fixture
def session(
    recorded: Any, project: Path, commits: list[str], config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """A champion made at one commit and a candidate made at the next, with the configuration of a tiny canary."""
    for at in (commits[1], commits[2]):
        facts = {f"canary.env.{key}": value for key, value in recorded_at(project, at).items()}
        made = recorded.session(runs=1, tags=facts)
        recorded.client.log_dict(recorded.children(made)[0], config, "config.yaml")
        recorded.register(made)
    monkeypatch.chdir(project)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    return recorded


# Every day: the champion's code beside in the test above, and whose run is made when in test_top_up.py.
@pytest.mark.full
def test_one_run_of_each_side_in_its_own_code(
    session: Any, project: Path, commits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    champion, candidate = (read_version(session.client, session.model, number).runs for number in ("1", "2"))
    parent = session.tags("2")["canary.session_id"]
    bless(session.client, session.model, "1", "a baseline for the test")
    session.client.set_tag(parent, "canary.model_name", session.model)
    mine = tuple(replace(run, hardware={"backend": "cpu"}) for run in candidate)  # recorded on a test's CPU
    environment = dict(os.environ)
    here = Here(session.client)
    with AddedRuns(session.client, parent, "v2", mine) as added:
        assert run_champion(added, here, "1", champion, 7) == ""
        assert make_one(here, spec := added.candidate(7)).failure == "", spec
    (beside,) = fresh_runs(session.client, parent, "1")
    added = session_runs(session.client, parent)[-1]
    assert [run.seed for run in (beside, added)] == [7, 7]
    assert (beside.environment["git_commit"], added.environment["git_commit"]) == (commits[1], commits[2])
    assert beside.run_id not in {run.run_id for run in session_runs(session.client, parent)}
    made = {run.info.run_id: run for run in child_runs(session.client, parent)}
    assert {made[run.run_id].info.status for run in (beside, added)} == {"FINISHED"}
    assert made[added.run_id].data.params["cfg/train.max_steps"] == "3"
    assert len(added.series["loss"].values) == 3
    assert dict(os.environ) == environment
    assert (len(worktrees(project)), list(tmp_path.iterdir())) == (1, [])


ONE_RUN = """
import os
from datasets import load_dataset
from prep import encode
rows = load_dataset("json", data_files=os.environ["ROWS"], split="train").map(encode)
print(rows[0]["input_ids"], file=open(os.environ["ROWS"] + ".seen", "a"))
"""


def test_no_revision_trains_on_the_tokens_of_another(
    recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Datasets names what map makes by the code of the function, not of the modules that it calls."""
    folder, rows = tmp_path / "project", tmp_path / "rows.jsonl"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    rows.write_text('{"text": "k1"}\n')
    (folder / "train.py").write_text(ONE_RUN)
    (folder / "MLproject").write_text(
        "name: canary_mlflow\nentry_points: {main: {command: 'true'}, again: {command: 'python train.py'}}\n"
    )
    (folder / "prep.py").write_text(
        "from words import ids\ndef encode(row):\n    return {'input_ids': ids(row['text'])}"
    )
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    monkeypatch.setenv("ROWS", str(rows))
    session = recorded.session(runs=0)
    for token in (1, 2, 1):
        (folder / "words.py").write_text(f"def ids(row):\n    return [{token}]\n")
        made = commit(folder, f"token {token}")
        with worktree(folder, made, "--candidate") as place:
            source = Source(project=folder, folder=place, env_manager="local", commit=made, here=False)
            spec = ProjectRun(name="one", store=recorded.uri, session=session, seed=0, source=source)
            launch(recorded.client, spec)
    assert Path(f"{rows}.seen").read_text().split() == ["[1]", "[2]", "[1]"]


def test_another_machine_is_refused_before_anything_is_made(session: Any) -> None:
    parent = session.tags("2")["canary.session_id"]
    runs = read_version(session.client, session.model, "2").runs
    before = len(child_runs(session.client, parent))
    with (
        AddedRuns(session.client, parent, "v2", runs) as added,
        pytest.raises(UsageError, match="expected test CPU, which its runs were made on"),
    ):
        added.candidate(8)
    assert len(child_runs(session.client, parent)) == before


def test_a_branch_that_a_shallow_clone_lacks_is_fetched_and_named(project: Path, commits: list[str], tmp_path) -> None:
    subprocess.run(["git", "-C", project, "branch", "-f", "elsewhere", commits[1]], check=True)
    clone = tmp_path / "clone"
    one = ["git", "clone", "-q", "--depth", "1", "--single-branch", f"file://{project}", clone]
    subprocess.run(one, check=True, capture_output=True)
    assert commit_of(clone, "elsewhere", "v") == commits[1]
    assert commit_of(clone, "origin/elsewhere", "v") == commits[1]


def test_the_release_that_dies_at_its_first_step_blocks(
    project: Path, commits: list[str], workplace: Workplace, request: pytest.FixtureRequest
) -> None:
    """TRL 1.15.0 trains no DPO on a CPU without Triton. It lies in the candidate's commit, before what is installed."""
    if not request.config.getoption("--full"):
        pytest.skip("installs TRL 1.15.0, with --full")
    clone = workplace.folder / "clone"
    subprocess.run(["git", "clone", "-q", project, clone], check=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", clone, "trl==1.15.0"]
    subprocess.run(pip, check=True)
    upgraded = commit(clone, "TRL 1.15.0")
    words = ["ab", "--baseline", commits[2], "--candidate", upgraded, "algo=dpo", "--tracking-uri", workplace.uri]
    done = subprocess.run(
        [sys.executable, "-m", "canary_mlflow.cli", *words],
        cwd=clone,
        env={**workplace.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert re.search(r"AttributeError at trl/trainer/utils\.py:\d+ in \w+ ended 2 of 2 runs of seed 0", done.stdout)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["train"]
    assert [one for one in map(Requirement, declared) if one.name == "trl" and "1.15.0" in one.specifier] == []
