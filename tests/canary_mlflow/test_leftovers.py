"""Who owns a run, and when it is left behind: on the same machine at once, on another when its heartbeat stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from canary_mlflow.edge import unwinding
from canary_mlflow.registry.sessions import leftovers
from canary_mlflow.tags import HEARTBEAT, LEASE
from canary_mlflow.tracking.signals import STOPPING, Terminated, waiting
from canary_mlflow.tracking.stores import owner
from canary_mlflow.tracking.stores.owner import Owner
from canary_mlflow.tracking.stores.session import create_child_run, finish_session, held, open_session

HERE = owner.this_process()
NOBODY = replace(HERE, started="1")  # its process id has been given to another
ELSEWHERE = replace(HERE, place="another-host 0 pid:[1]")


def status(recorded: Any, run_id: str) -> str:
    return str(recorded.client.get_run(run_id).info.status)


@pytest.mark.parametrize(
    ("holder", "silent", "expected"),
    [
        (HERE, 10_000, "RUNNING"),
        (NOBODY, 0, "FAILED"),
        (ELSEWHERE, 60, "RUNNING"),
        (ELSEWHERE, 3600, "FAILED"),
        (replace(NOBODY, user=HERE.user + 1), 60, "RUNNING"),  # whose processes /proc may hide
    ],
)
def test_a_session_ends_with_its_process(recorded: Any, holder: Owner, silent: int, expected: str) -> None:
    client = recorded.client
    lease = {LEASE: holder.to_text()}
    beat = {HEARTBEAT: str(int(time.time()) - silent)}
    session = client.create_run(recorded.experiment, tags={"canary.role": "session", **lease, **beat}).info.run_id
    child = create_child_run(client, session, "seed 0", lease, {})
    leftovers.close_left_open(client)
    assert [status(recorded, run_id) for run_id in (session, child)] == [expected, expected]
    finish_session(client, session, "FAILED")


def test_a_signal_ends_what_the_process_holds_open_and_what_mlflow_run_made_for_it(
    recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it waits: a run may just have been made, and no code know its id yet."""
    client, handlers = recorded.client, {each: signal.getsignal(each) for each in (signal.SIGINT, *STOPPING)}
    role = {"canary.role": "session"}
    own, others = (
        client.create_run(recorded.experiment, tags={**role, LEASE: holder.to_text()}).info.run_id
        for holder in (HERE, ELSEWHERE)
    )
    project, kept = (client.create_run(recorded.experiment).info.run_id for _ in range(2))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    monkeypatch.setenv("MLFLOW_RUN_ID", project)
    try:
        with pytest.raises(Terminated), unwinding(), waiting():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    ended = [status(recorded, run_id) for run_id in (own, project, others, kept)]
    assert ended == ["FAILED", "FAILED", "RUNNING", "RUNNING"]
    assert client.get_run(project).data.tags["canary.failure"] == "interrupted"
    for run_id in (others, kept):
        client.set_terminated(run_id, "FAILED")


@pytest.mark.parametrize("sealed", [False, True])
def test_a_version_that_a_killed_session_left_without_a_seal_is_dropped(
    recorded: Any, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    client = recorded.client
    session = recorded.session()
    client.update_run(session, "RUNNING")
    for name, value in {LEASE: NOBODY.to_text()}.items():
        client.set_tag(session, name, value)
    if not sealed:  # as a process that is killed between the two leaves it
        monkeypatch.setattr("canary_mlflow.registry.sessions.registering.seal_version", lambda *_, **__: None)
    number = recorded.register(session)
    leftovers.close_left_open(client)
    assert status(recorded, session) == "FAILED"
    left = [str(found.version) for found in client.search_model_versions(f"name='{recorded.model}'")]
    assert left == ([number] if sealed else [])


def test_a_version_that_cannot_be_sealed_is_none(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("canary_mlflow.registry.sessions.registering.seal_version", stopped)
    with pytest.raises(KeyboardInterrupt):
        recorded.version()
    assert recorded.client.search_model_versions(f"name='{recorded.model}'") == []


def test_without_a_lease_or_a_heartbeat_nobody_elsewhere_can_tell(recorded: Any) -> None:
    """`canary session start` ends at once and its session does not; a script's own run has no heartbeat."""
    client = recorded.client
    own = client.create_run(recorded.experiment, tags={"canary.role": "session"}).info.run_id
    lease = {LEASE: ELSEWHERE.to_text()}
    alone = client.create_run(recorded.experiment, tags={"canary.role": "run", **lease}).info.run_id
    leftovers.close_left_open(client)
    assert [status(recorded, run_id) for run_id in (own, alone)] == ["RUNNING", "RUNNING"]
    for run_id in (own, alone):
        client.set_terminated(run_id, "FAILED")


def test_a_session_that_is_held_beats(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canary_mlflow.tracking.stores.session.EVERY", 0.05)
    session = open_session(recorded.client, "recorded", "held", {})
    with held(recorded.client, session):
        recorded.client.set_tag(session, HEARTBEAT, "0")
        deadline = time.monotonic() + 10
        while (heard := recorded.client.get_run(session).data.tags[HEARTBEAT]) == "0":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert abs(int(heard) - time.time()) < 60
    finish_session(recorded.client, session, "FINISHED")


def test_a_folder_goes_when_its_process_is_gone_and_no_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "canary-somebody-elses").mkdir()
    code = (
        f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        "from canary_mlflow.tracking.stores.owner import scratch\n"
        "with scratch('again') as place:\n"
        "    print(place, flush=True)\n"
        "    input()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout
    folder = Path(other.stdout.readline().strip())
    with owner.scratch("again") as mine:
        assert owner.left_behind() == []
        other.kill()
        other.communicate()
        assert owner.left_behind() == [folder]
        assert owner.remove_left_behind() == 1
        assert mine.exists()
    assert [item.name for item in tmp_path.iterdir()] == ["canary-somebody-elses"]
