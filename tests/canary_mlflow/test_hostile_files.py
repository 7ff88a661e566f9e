"""Files from strangers: no pipe blocks, no device is read, nothing is unpacked or nested without end."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from canary_mlflow.cli import canary as command
from canary_mlflow.errors import UsageError
from canary_mlflow.files import source
from canary_mlflow.files.documents import parse_json, parse_yaml, read_json
from canary_mlflow.files.reading import read_history
from canary_mlflow.files.source import TooMuch

ROW = '{"step": 1, "loss": 2.0}\n'
DEEP = 5000
PATIENCE = 60  # seconds; a pipe is waited for without end


def lists(depth: int) -> str:
    return "[" * depth + "]" * depth


def laughs() -> str:
    """Ten aliases of ten aliases …, ten times: 650 bytes."""
    first = "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    return first + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9))


MADE = {
    "deep.jsonl": f'{{"step": 1, "loss": {lists(DEEP)}}}\n',
    "deeper.jsonl": f'{{"step": 1, "loss": {lists(20 * DEEP)}}}\n',
    "deep.json": f'{{"log_history": {lists(20 * DEEP)}}}',
    "deep.yaml": f"rules: {lists(DEEP)}",
    "laugh.yaml": laughs(),
    "self.yaml": "rules: &a [*a]\n",
    "beside.jsonl": ROW,
    "beside.json": f'{{"workload": {{"a": {lists(900)}}}}}',
    "good.jsonl": "".join(json.dumps({"step": step, "loss": 3.0 / step}) + "\n" for step in range(1, 60)),
    "wide.csv": f"step,{','.join(f'c{n}' for n in range(30_000))}\n",
    "wide.jsonl": "".join(json.dumps({"step": s, **{f"k{s}_{n}": 1 for n in range(900)}}) + "\n" for s in range(30)),
}
# command → what its one line says
REFUSED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("replay", "pipe"), "is a pipe, not a regular file"),
    (("replay", "/dev/zero"), "is a device, not a regular file"),
    (("replay", "deep.jsonl"), "expected"),
    (("replay", "deeper.jsonl"), "is nested too deeply"),
    (("replay", "deep.json"), "is nested too deeply"),
    (("replay", "wide.csv"), "more than 20,000 columns"),
    (("replay", "wide.jsonl"), "more than 20,000 columns"),
    (("replay", "events"), "is a pipe, not a regular file"),
    (
        ("judge", "--baseline", "beside.jsonl", "--candidate", "good.jsonl", "--policy", "smoke"),
        "nested more than 50 deep",
    ),
    (("replay", "good.jsonl", "--policy", "pipe"), "is a pipe, not a regular file"),
    (("replay", "good.jsonl", "--policy", "/dev/zero"), "is a device, not a regular file"),
    (("replay", "good.jsonl", "--policy", "deep.yaml"), "nested more than 50 deep"),
    (("replay", "good.jsonl", "--policy", "laugh.yaml"), "more than 100,000 values with its aliases written out"),
    (("replay", "good.jsonl", "--policy", "self.yaml"), "*a within &a"),
    (("import", "pipe"), "is a pipe, not a regular file"),
    (("audit", "verify", "pipe"), "is a pipe, not a regular file"),
    (("audit", "verify", "/dev/zero"), "is a device, not a regular file"),
    (("audit", "verify", "deeper.jsonl"), "no row of a ledger"),
    (("audit", "verify", "good.jsonl", "--key", "pipe"), "is a pipe, not a regular file"),
    (("deliver", "pipe"), "is a pipe, not a regular file"),
    (("deliver", "deeper.jsonl"), "its first line names no run"),
    (("keys", "trust", "pipe"), "is a pipe, not a regular file"),
    (("keys", "trust", "/dev/zero"), "is a device, not a regular file"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    for name, text in MADE.items():
        (folder / name).write_text(text)
    os.mkfifo(folder / "pipe")
    (folder / "events").mkdir()
    os.mkfifo(folder / "events" / "x.tfevents.1")
    return folder


@pytest.fixture
def alarm() -> Any:
    """What would wait without end fails instead."""
    import signal

    def ring(*_: Any) -> None:
        raise AssertionError(f"still waiting after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_is_no_file_or_nested_or_wide_is_one_line(
    place: Path, words: tuple[str, ...], says: str, alarm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    result = CliRunner().invoke(command, list(words), catch_exceptions=False, prog_name="canary")
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.output
    assert says in lines[0]


def test_a_line_without_end_is_not_unpacked_into_memory(tmp_path: Path) -> None:
    """4 MB of gzip hold a line of gigabytes: the reader gives up after as much as a line may have."""
    file = tmp_path / "line.jsonl.gz"
    with gzip.open(file, "wb", 1) as packed:
        packed.write(ROW.encode() + b'{"step": 2, "loss": "')
        for _ in range(400):
            packed.write(b"a" * (1 << 20))
    code = f"import pathlib\nfrom canary_mlflow.files import reading\nreading.read_history(pathlib.Path({str(file)!r}))"
    limit = 1 << 30  # bytes of memory, the libraries' own included
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert "UsageError" in found.stderr.splitlines()[-1]
    assert "has a line of more than 4 MiB" in found.stderr
    assert found.returncode == 1


def test_more_than_may_be_unpacked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "blank.csv.gz"
    file.write_bytes(gzip.compress(b"step,loss\n1,2\n" + b"\n" * 200_000))
    assert len(read_history(file).series["loss"].values) == 1
    monkeypatch.setattr("canary_mlflow.files.source.MAX_BYTES", 100_000)
    with pytest.raises(UsageError, match="holds more than 97 KiB"):
        read_history(file)


def test_one_value_may_stand_in_one_line_as_long_as_a_whole_file(tmp_path: Path) -> None:
    """json.dump without indent writes trainer_state.json so."""
    rows = [{"step": step, "loss": 1.0, "note": "x" * 100} for step in range(1, 40_000)]
    file = tmp_path / "trainer_state.json"
    file.write_text(json.dumps({"log_history": rows}))
    assert file.stat().st_size > source.MAX_LINE
    assert read_history(file).last_step == 39_999


def test_documents_have_limits(tmp_path: Path) -> None:
    assert parse_json(lists(source.MAX_DEPTH)) == json.loads(lists(source.MAX_DEPTH))
    for text in (lists(source.MAX_DEPTH + 1), lists(100_000)):
        with pytest.raises(TooMuch, match="nested more than 50 deep"):
            parse_json(text)
    assert parse_yaml("a: &x [1, 2]\nb: [*x, *x]\n<<: {c: 3}") == {"a": [1, 2], "b": [[1, 2], [1, 2]], "c": 3}
    with pytest.raises(TooMuch, match="nested more than 50 deep"):  # through aliases
        parse_yaml("".join(f"k{n}: &k{n} {'[' * 20}{f'*k{n - 1}' if n else 1}{']' * 20}\n" for n in range(4)))
    large = tmp_path / "large.json"
    large.write_text(f'"{"x" * source.MAX_DOCUMENT}"')
    with pytest.raises(TooMuch, match="holds more than 1 MiB"):
        read_json(large)


def test_an_artifact_that_is_a_link_to_elsewhere_is_not_read(recorded: Any, tmp_path: Path) -> None:
    """The editor of a run may write its folder; what the server may read is not theirs to show."""
    from canary_mlflow.analysis.subject import from_file

    session = recorded.session(runs=1)
    elsewhere = tmp_path / "verdict.json"
    elsewhere.write_text("{}")
    place = Path(recorded.client.get_run(session).info.artifact_uri.removeprefix("file://"))
    place.mkdir(parents=True, exist_ok=True)
    (place / "verdict.json").symlink_to(elsewhere)
    assert from_file(recorded.client, session, None) == (None, "")
    with pytest.raises(OSError, match="is a link to outside"):
        read_json(place / "verdict.json", within=place)


def test_a_pipe_among_a_versions_files_is_not_waited_for(tmp_path: Path, alarm: Any) -> None:
    from canary_mlflow.registry.guard.weights import fault_of

    os.mkfifo(tmp_path / "model.safetensors")
    assert fault_of(tmp_path) == "model.safetensors: is a pipe, not a regular file"


@pytest.mark.parametrize("depth", [DEEP, 60])
def test_a_body_that_is_nested_deeply_is_400(shared: Any, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from flask import Flask

    from canary_mlflow.server.routes import add_routes

    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", shared.uri)
    app = Flask("server")
    add_routes(app, authenticated=False)
    answer = app.test_client().post("/api/2.0/canary/verdicts", data=f'{{"model": {lists(depth)}}}')
    assert answer.status_code == 400
    assert "nested more than 50 deep" in answer.get_json()["message"]
