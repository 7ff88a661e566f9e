"""The outbox: complete on disk, in order, whatever happens to the process; what a full disk does not take waits."""

from __future__ import annotations

import json
import math
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from canary_mlflow.errors import UsageError
from canary_mlflow.tracking.delivery.outbox import Item, Outbox, StillSent

END = {"status": "FINISHED", "end_time": 5}


def row(step: int) -> Item:
    kl = math.nan if step == 3 else 0.1
    return {"timestamp": 1000 + step, "step": step, "metrics": {"loss": 1 / step, "kl": kl}}


def outbox(folder: Path, most: int = 10) -> Outbox:
    return Outbox(folder / "undelivered.jsonl", run_id="r1", store="http://here", most=most)


def drain(queue: Outbox, most: int = 6) -> list[Item]:
    found: list[Item] = []
    while items := queue.take(most):
        found += items
        queue.done()
    return found


def steps(items: list[Item]) -> list[int]:
    return [item["step"] for item in items if "metrics" in item]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file grows beyond `size` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_all_is_on_disk_at_once_and_comes_out_in_order(tmp_path: Path) -> None:
    queue = outbox(tmp_path / "new")
    for step in range(1, 51):
        queue.put(row(step))
        assert len(queue.path.read_text().splitlines()) == 1 + step
    assert queue.values == 100
    assert stat.S_IMODE(queue.path.stat().st_mode) == 0o600
    queue.put({"tags": {"a": "b"}})
    found = drain(queue)
    assert steps(found) == list(range(1, 51))
    assert found[-1] == {"tags": {"a": "b"}}
    assert math.isnan(found[2]["metrics"]["kl"])
    assert found[48] == row(49)  # to the last bit
    assert queue.values == 0
    assert not queue.path.parent.exists()
    queue.put(row(60))  # and it begins again
    assert steps(drain(queue)) == [60]


def test_rows_put_while_others_are_taken_keep_their_turn(tmp_path: Path) -> None:
    queue = outbox(tmp_path)
    found: list[Item] = []
    for step in range(1, 41):
        queue.put(row(step))
        if step % 3 == 0:
            found += queue.take(2)
            queue.done()
    assert steps(found + drain(queue)) == list(range(1, 41))


def test_what_was_taken_and_not_confirmed_is_taken_again(tmp_path: Path) -> None:
    queue = outbox(tmp_path)
    for step in (1, 2, 3):
        queue.put(row(step))
    assert steps(queue.take(4)) == [1, 2]
    assert steps(queue.take(4)) == [1, 2]
    queue.close()
    queue.done()  # a call that hung until now
    assert steps(drain(outbox(tmp_path))) == [1, 2, 3]


def test_an_outbox_is_the_same_in_another_process(tmp_path: Path) -> None:
    queue = outbox(tmp_path)
    for step in range(1, 21):
        queue.put(row(step))
    queue.take(4)
    queue.done()
    queue.put(END)
    assert queue.close() == (True, 0, None)
    found = Outbox.of_file(queue.path)
    assert (found.run_id, found.store, found.values) == ("r1", "http://here", 40)
    items = drain(found)
    assert steps(items) == list(range(1, 21))  # a store keeps one of two equal rows
    assert items[-1] == END
    assert not queue.path.exists()


def test_what_yesterdays_version_left_is_read(tmp_path: Path) -> None:
    """Lines as 0.9 wrote them."""
    path = tmp_path / "undelivered.jsonl"
    path.write_text(
        '{"format":"canary-undelivered-1","run_id":"r1","store":"sqlite:////x.db"}\n'
        '{"timestamp":7,"step":1,"metrics":{"loss":"-Infinity","trl/x":0.5}}\n'
        '{"artifact":"metrics.json","content":"{}"}\n{"tags":{"a":"b"}}\n'
        '{"file":"/tmp/none/stability.jsonl","remove":true}\n{"status":"FAILED","end_time":9}\n'
    )
    found = drain(Outbox.of_file(path))
    assert found[0] == {"timestamp": 7, "step": 1, "metrics": {"loss": -math.inf, "trl/x": 0.5}}
    assert [set(item) for item in found[1:]] == [
        {"artifact", "content"}, {"tags"}, {"file", "remove"}, {"status", "end_time"},
    ]  # fmt: skip


def test_nobody_else_delivers_what_a_run_still_sends(tmp_path: Path) -> None:
    queue = outbox(tmp_path)
    queue.put(row(1))
    with pytest.raises(StillSent, match="wait for the run's end"):
        Outbox.of_file(queue.path)
    late = outbox(tmp_path)  # the run is resumed while somebody delivers what it left
    late.put(row(2))
    assert steps(drain(queue)) == [1]
    late.put(row(3))
    assert steps(drain(late)) == [2, 3]


def test_deliver_goes_past_what_a_run_still_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from canary_mlflow.cli import canary

    queue = outbox(tmp_path / "canary/r1")
    queue.put(row(1))
    monkeypatch.chdir(tmp_path)
    every, named = (CliRunner().invoke(canary, ["deliver", *words]) for words in ([], [str(queue.path)]))
    assert (every.exit_code, "a process still sends it" in every.output) == (0, True), every.output
    assert named.exit_code == 2
    assert queue.values == 2
    assert queue.path.exists()


def test_a_resumed_run_goes_on_where_the_killed_one_stopped(tmp_path: Path) -> None:
    first = outbox(tmp_path)
    for step in (1, 2, 3, 4):
        first.put(row(step))
    first.close()
    with first.path.open("a") as file:
        file.write('{"timestamp": 10')  # the kill
    second = outbox(tmp_path)
    assert second.values == 8
    second.put(row(5))
    assert steps(drain(second)) == [1, 2, 3, 4, 5]
    assert second.unreadable == 1


def test_a_full_disk_loses_only_what_memory_does_not_hold_and_no_line_in_part(tmp_path: Path) -> None:
    queue = outbox(tmp_path, most=4)
    queue.put(row(1))
    queue.put(row(2))
    lost = []
    with full_disk(queue.path.stat().st_size + 100):
        for step in range(3, 10):
            if queue.put(row(step))[0]:
                lost.append(step)
        assert all(json.loads(line) for line in queue.path.read_text().splitlines())
        assert lost == [6, 7, 8, 9]  # one row more on disk, two in memory
        found = [*queue.take(6)]
        queue.done()
        assert steps(found) == [1, 2, 3]
        assert steps(queue.take(2)) == [4]  # a store that answers needs no disk
    queue.put(row(10))
    queue.done()
    assert steps(drain(queue)) == [5, 10]


def test_many_rows_at_once_are_kept_as_far_as_there_is_room(tmp_path: Path) -> None:
    queue = outbox(tmp_path, most=4)
    queue.put(row(1))
    with full_disk(queue.path.stat().st_size + 100):
        lost, error = queue.put(*map(row, range(2, 10)))
    assert (lost, queue.values) == (2 * 5, 2 * 4)  # one more on disk, two in memory
    assert error is not None
    assert steps(drain(queue)) == [1, 2, 3, 4]


def test_what_a_full_disk_does_not_take_to_the_end_is_counted(tmp_path: Path) -> None:
    queue = outbox(tmp_path)
    with full_disk(50):
        for step in (1, 2):
            queue.put(row(step))
        left, lost, error = queue.close()
    assert (left, lost, list(tmp_path.iterdir())) == (False, 4, [])
    assert error is not None


def test_a_file_that_somebody_removes_is_sent_all_the_same(tmp_path: Path) -> None:
    queue = outbox(tmp_path)
    queue.put(row(1))
    queue.path.unlink()
    queue.put(row(2))
    assert steps(drain(queue)) == [1, 2]


def test_another_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(UsageError, match="No such file"):
        Outbox.of_file(path)
    for content in ("", "[]", '{"loss": 1}\n', "no json", '"text"'):
        path.write_text(content)
        with pytest.raises(UsageError, match="names no run; expected a file undelivered"):
            Outbox.of_file(path)
