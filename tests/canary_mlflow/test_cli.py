"""The canary command as its user meets it: exit codes, one-line errors, JSON alone on stdout, no torch."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import forking
import pytest
from click.testing import CliRunner, Result

from canary_mlflow import cli
from canary_mlflow.module_runner import FILE as RUNNER
from canary_mlflow.tracking.signals import STOPPING

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "trl", "peft", "datasets"}


def canary(*arguments: str) -> Result:
    """The command in this process; an unforeseen exception fails the test with its traceback."""
    return CliRunner().invoke(cli.canary, list(arguments), catch_exceptions=False, prog_name="canary")


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, a forked one."""
    command = [forking.python(), "-m", "canary_mlflow.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


def one_line(result: Result, code: int) -> str:
    """The line of an expected error; nothing else was said."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_gate_ends_with_the_verdicts_code_and_prints_it_first(guarded: Any) -> None:
    same, slow, other = (
        guarded.version(),
        guarded.version(slower=2.0),
        guarded.version(tags={"canary.workload.algo": "sft"}),
    )
    store = ("--tracking-uri", guarded.uri)
    for version, code, word in ((slow, 1, "BLOCK"), (other, 3, "INCONCLUSIVE"), (same, 0, "PASS")):
        result = canary("gate", guarded.model, version, *store)
        assert (result.exit_code, result.stdout.split()[0], result.stderr) == (code, word, "")
        assert f"canary ui --tracking-uri {guarded.uri}" in result.stdout
    assert guarded.champion() == same


def test_first_gate_is_a_bootstrap_with_code_0(recorded: Any, usual_session: str) -> None:
    result = canary("gate", recorded.model, recorded.register(usual_session), "--tracking-uri", recorded.uri)
    assert (result.exit_code, result.stdout.split()[0]) == (0, "BOOTSTRAP")


def test_json_stands_alone_on_stdout(guarded: Any) -> None:
    version = guarded.version()
    done = process("gate", guarded.model, version, "--json", "--dry-run", MLFLOW_TRACKING_URI=guarded.uri)
    assert done.returncode == 0
    plain = json.loads(done.stdout)
    assert (plain["decision"], plain["version"], plain["dry_run"]) == ("PASS", version, True)
    assert done.stderr.startswith("PASS ")
    assert guarded.champion() == "1"


def told(store: Any, session: str, **params: str) -> None:
    """What the runs of a session were told, as params of each."""
    for run_id in store.children(session):
        for key, value in params.items():
            store.client.log_param(run_id, f"cfg/{key}".replace("__", "."), value)


def test_what_changed_is_said_wherever_the_verdict_is_shown(recorded: Any, tmp_path: Path) -> None:
    """A learning rate, a package and three commits; neither seeds nor folders."""
    sessions = []
    for rate, trl, log in (("0.002", "1.15.0", "a1 a0"), ("0.02", "1.16.0", "b3 b2 b1 a1 a0")):
        tags = {"canary.env.trl": trl, "canary.env.git_commit": log.split()[0] * 20, "canary.env.git_log": log}
        sessions.append(recorded.session(tags=tags))
        told(recorded, sessions[-1], train__learning_rate=rate, output_dir=trl, seed=trl, train__max_steps="40")
    store = ("--tracking-uri", recorded.uri, "--policy", "smoke")
    said = " ".join(canary("compare", *sessions, *store).stdout.split())
    changed = "Changed: train.learning_rate 0.002 → 0.02; commit a1a1a1a → b3b3b3b (3 commits on); trl 1.15.0 → 1.16.0."
    assert changed in said
    assert "Missing on one or both sides: facts, data." in said
    found = json.loads(canary("compare", *sessions, *store, "--json").stdout)
    assert found["changed"].startswith(changed)
    assert [one["group"] for one in found["verdict"]["differences"]] == ["configuration", "code", "packages"]


def test_full_shows_what_the_short_report_leaves_out(guarded: Any) -> None:
    version = guarded.version(slower=2.0)
    arguments = ("gate", guarded.model, version, "--dry-run", "--tracking-uri", guarded.uri)
    short, full = canary(*arguments).stdout, canary(*arguments, "--full").stdout
    assert len(short.splitlines()) <= 20
    for metric in ("(ok)", "A metric passes when the whole range"):
        assert metric in " ".join(full.split())
        assert metric not in " ".join(short.split())


def test_policy_is_the_tiers_own_unless_named(guarded: Any, tmp_path: Path) -> None:
    version = guarded.version(slower=1.5)
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: smoke\nname: mine\nrules: {step_cost: {margin: 2.0}}\n")
    store = ("--tracking-uri", guarded.uri, "--dry-run", "--json")
    for chosen, name, word in (((), "smoke", "BLOCK"), (("--policy", str(mine)), "mine", "PASS")):
        plain = json.loads(canary("gate", guarded.model, version, *chosen, *store).stdout)
        assert (plain["verdict"]["policy"]["name"], plain["decision"]) == (name, word)
    # MLproject's gate passes an empty policy when none is given.
    assert canary("gate", guarded.model, version, "--policy=", *store).exit_code == 1


def test_compare_takes_runs_sessions_and_versions_and_writes_nothing(guarded: Any) -> None:
    second = guarded.version(slower=2.0)
    session = guarded.tags(second)["canary.session_id"]
    run_id = guarded.children(session)[0]
    before = guarded.tags(second)
    for candidate in (f"{guarded.model}/{second}", f"models:/{guarded.model}/{second}", session):
        result = canary("compare", f"{guarded.model}@champion", candidate, "--tracking-uri", guarded.uri)
        assert result.exit_code == 0
        assert result.stdout.startswith("COMPARISON, a gate would say BLOCK")
    strict = ("--exit-code", "--json", "--tracking-uri", guarded.uri)
    result = canary("compare", f"models:/{guarded.model}@champion", run_id, *strict)
    plain = json.loads(result.stdout)
    assert (plain["question"], plain["verdict"]["candidate_runs"]) == ("comparison", [run_id])
    assert result.exit_code == plain["exit_code"]
    assert guarded.tags(second) == before
    assert guarded.champion() == "1"


def test_bless(guarded: Any) -> None:
    version = guarded.version()
    arguments = ("bless", guarded.model, version, "--reason", "by hand", "--json", "--tracking-uri", guarded.uri)
    result = canary(*arguments)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["reason"] == "by hand"
    assert result.stderr.startswith(f"Version {version} of {guarded.model} is champion now (before: version 1)")
    assert guarded.champion() == version


BAD_INPUT = [
    (["gate", "no-such-model", "1"], 2, "model 'no-such-model': not in the registry; models: "),
    (["gate", "{model}", "9"], 2, "version '9' of '{model}': not in the registry; versions: 1"),
    (["gate", "{model}", "one"], 2, "version 'one' of '{model}': not in the registry; versions: 1"),
    (["gate", "{model}", "1"], 2, "version 1 of '{model}': it is the champion already"),
    (["gate", "{model}", "1", "--policy", "strict"], 2, "'strict' not found; valid: facts, files, nightly, perf"),
    (["gate", "{model}", "1", "--policy", "{unknown_metric}"], 2, "step_tim"),
    (["gate", "{model}", "1", "--policy", "{broken}"], 2, "cannot be read as YAML"),
    (["bless", "{model}", "1", "--reason", " "], 2, "--reason: found an empty text; expected why"),
    (["bless", "{model}", "9", "--reason", "r"], 2, "version '9' of '{model}': not in the registry"),
    (["bless", "{model}", "1", "--reason", "r"], 2, "it is the champion already"),
    (["compare", "{model}/1", "0123abc"], 2, "run '0123abc': not in "),
    (["compare", "{model}/1", "{model}/8"], 2, "version '8' of '{model}': not in the registry"),
    (["compare", "{model}@other", "{model}/1"], 2, "alias 'other' of '{model}': names no version; aliases: champion"),
    (["compare", "nothing@champion", "{model}/1"], 2, "model 'nothing': not in the registry"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "expected"), BAD_INPUT, ids=[" ".join(case[0]) for case in BAD_INPUT])
def test_bad_input_is_one_line(guarded: Any, tmp_path: Path, arguments: list[str], code: int, expected: str) -> None:
    unknown_metric, broken = tmp_path / "unknown.yaml", tmp_path / "broken.yaml"
    unknown_metric.write_text("base: smoke\nrules: {step_time: {metric: step_tim}}\n")
    broken.write_text("rules: [\n")
    names = {"model": guarded.model, "unknown_metric": str(unknown_metric), "broken": str(broken)}
    filled = [argument.format(**names) for argument in arguments]
    line = one_line(canary(*filled, "--tracking-uri", guarded.uri), code)
    assert line.startswith("canary: ")
    assert expected.format(**names) in line
    assert guarded.champion() == "1"


@pytest.mark.parametrize(
    "arguments", ["gate", "gate m", "bless m 1", "compare a", "nonsense", "gat m 1", "gate m 1 --no"]
)
def test_a_wrong_command_line_ends_with_2(arguments: str) -> None:
    line = one_line(canary(*arguments.split()), 2)
    assert line.startswith("canary: ")
    assert "--help` says what it takes" in line
    assert "?;" not in line


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:9", "sqlite:////proc/nowhere/mlflow.db", "postgresql://nobody@127.0.0.1:9/none"]
)
def test_an_unreachable_store_is_one_line(uri: str) -> None:
    for command in (["gate", "m", "1"], ["compare", "a", "b"], ["bless", "m", "1", "--reason", "r"]):
        line = one_line(canary(*command, "--tracking-uri", uri), 4)
        assert uri.removeprefix("sqlite:///") in line


@pytest.mark.parametrize(
    "arguments", ["gate m 1", "session start m", "replay x.csv", "judge --baseline a --candidate b --policy smoke"]
)
def test_a_deleted_working_folder_is_one_line(arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (folder := tmp_path / "gone").mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert "the working folder: it was deleted; expected one that is there" in one_line(canary(*arguments.split()), 4)


def test_a_kind_of_store_that_there_is_not_is_wrong_use() -> None:
    refusal = one_line(canary("gate", "m", "1", "--tracking-uri", "nonsense://x"), 2)
    assert "nonsense:// is not a kind of store" in refusal


def test_a_version_without_a_tier_asks_for_a_policy(recorded: Any) -> None:
    run_id = recorded.client.create_run(recorded.experiment).info.run_id
    recorded.client.create_registered_model(recorded.model)
    recorded.client.create_model_version(recorded.model, "s3://elsewhere/model", run_id=run_id)
    line = one_line(canary("gate", recorded.model, "1", "--tracking-uri", recorded.uri), 2)
    assert f"{recorded.model!r}: the run of its first version names no tier" in line


def test_looking_makes_no_store(tmp_path: Path) -> None:
    line = one_line(canary("gate", "m", "1", "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db"), 4)
    assert "no store there; expected one that a run has made" in line
    assert list(tmp_path.iterdir()) == []


def test_a_bug_keeps_its_traceback(
    guarded: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("canary_mlflow.registry.judging.gatekeeper.gate", broken)
    arguments = ["gate", guarded.model, "1", "--policy", "smoke", "--tracking-uri", guarded.uri]
    monkeypatch.setattr(sys, "argv", ["canary", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 4  # not 1, which says BLOCK
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_stream_that_lacks_a_sign_of_the_report_changes_no_exit_code(
    guarded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Latin-1 terminal or a job's log in ASCII: the champion has moved, and 4 would say that something failed."""
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", plain)
    monkeypatch.setattr(
        sys, "argv", ["canary", "gate", guarded.model, guarded.version(), "--tracking-uri", guarded.uri]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    plain.flush()
    assert ended.value.code == 0
    assert plain.buffer.getvalue().startswith(b"PASS")  # type: ignore[attr-defined]  # the BytesIO above
    assert b"???" in plain.buffer.getvalue()  # type: ignore[attr-defined]


def test_ctrl_c_is_no_block(guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("canary_mlflow.registry.judging.gatekeeper.gate", interrupted)
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, *STOPPING)]
    result = canary("gate", guarded.model, "1", "--policy", "smoke", "--tracking-uri", guarded.uri)
    assert "interrupted" in one_line(result, 4)
    assert [signal.getsignal(each) for each in (signal.SIGINT, *STOPPING)] == handlers


def test_a_reader_that_leaves_early_does_not_change_the_exit_code(guarded: Any) -> None:
    version = guarded.version(slower=2.0)
    gate = ("-m", "canary_mlflow.cli", "gate", guarded.model, version, "--tracking-uri", guarded.uri)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [forking.python(), *gate], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_env_shows_the_fingerprint() -> None:
    plain = json.loads(canary("env", "--json").stdout)
    assert plain["environment"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert plain["hardware"]["backend"] in ("cpu", "cuda")
    assert "python" in canary("env").stdout


def test_doctor_says_line_by_line(guarded: Any) -> None:
    result = canary("doctor", "--tracking-uri", guarded.uri)
    assert {line.split()[0] for line in result.stdout.splitlines()} <= {"ok", "warn", "fail"}
    assert "store" in result.stdout
    asked = canary("doctor", "--json", "--tracking-uri", guarded.uri)
    plain = json.loads(asked.stdout)
    assert [finding["level"] for finding in plain["findings"] if finding["name"] == "store"] == ["ok"]
    assert asked.stderr.splitlines()[0].startswith(plain["findings"][0]["level"])


def test_doctor_fails_for_an_unreachable_store() -> None:
    result = canary("doctor", "--tracking-uri", "http://127.0.0.1:9")
    assert result.exit_code == 4
    assert "fail  store" in result.stdout


def test_help_is_quick_and_documents_the_exit_codes() -> None:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "canary_mlflow.cli", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert time.perf_counter() - began < 5  # 0.15 s on an idle machine; mlflow alone takes over 1 s of CPU
    for command in ("run", "gate", "compare", "bless", "env", "doctor", "Exit codes:", "3  INCONCLUSIVE"):
        assert command in done.stdout
    for command in ("run", "gate", "compare", "bless"):
        assert "3  INCONCLUSIVE" in canary(command, "--help").stdout


def test_help_says_what_each_command_does_in_a_whole_sentence() -> None:
    said = canary("--help").stdout
    assert "..." not in said.split("Train:")[1]


def test_help_loads_nothing_heavy() -> None:
    assert loaded(0, "--help") & (HEAVY | {"mlflow", "numpy", "rich"}) == set()


def test_gate_loads_no_torch(guarded: Any) -> None:
    version = guarded.version()
    modules = loaded(0, "gate", guarded.model, version, "--tracking-uri", guarded.uri)
    assert "scipy" in modules  # it judged
    assert modules & HEAVY == set()


def loaded(code: int, *arguments: str) -> set[str]:
    """The top-level modules in memory after a command that ended with `code`."""
    probe = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('\\n' + ' '.join({name.split('.')[0] for name in sys.modules})))\n"
        f"sys.argv = ['canary', *{list(arguments)!r}]\n"
        "from canary_mlflow.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_run_without_the_training_stack_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canary_mlflow.installation.TRAINING_STACK", ("json", "no_such_package"))
    line = one_line(canary("run", "tier=smoke"), 2)
    assert "no_such_package not installed" in line
    assert "pip install 'canary-mlflow[train]'" in line


def test_run_is_python_m_training_with_the_same_arguments(tmp_path: Path) -> None:
    """Of this project, though the working folder has a package of that name."""
    (tmp_path / "training").mkdir()
    (tmp_path / "training/__init__.py").write_text("raise SystemExit('the code of somebody else')")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [forking.python(), str(RUNNER), "canary_mlflow.cli", "run", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    shown = run("algo=kto", "--cfg", "job")
    assert (shown.returncode, "name: kto" in shown.stdout) == (0, True), shown.stderr
    refused = run("algo=kto", "--tracking-uri", "sqlite:///:memory:")
    assert (refused.returncode, "tracking store sqlite:///:memory:" in refused.stderr) == (2, True)
    assert "python -m training" in canary("run", "--help").stdout
