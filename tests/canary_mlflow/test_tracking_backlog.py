"""The queue before the store: bounded in memory, complete on disk, in order, whatever happens to the process."""

from __future__ import annotations

import json
import math
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from canary_mlflow.errors import UsageError
from canary_mlflow.tracking.delivery.backlog import Backlog
from canary_mlflow.tracking.delivery.items import Item, Sample, Status, Tags


def sample(step: int) -> Sample:
    return Sample(timestamp=1000 + step, step=step, values={"loss": 1 / step, "kl": math.nan if step == 3 else 0.1})


def backlog(folder: Path, most: int = 10) -> Backlog:
    return Backlog(folder / "undelivered.jsonl", run_id="r1", store="http://here", most=most)


def drain(queue: Backlog, most: int = 6) -> list[Item]:
    found: list[Item] = []
    while items := queue.take(most):
        found += items
        queue.done()
    return found


def steps(items: list[Item]) -> list[int]:
    return [item.step for item in items if isinstance(item, Sample)]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file grows beyond `size` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_memory_does_not_hold_is_in_the_file_and_all_comes_out_in_order(tmp_path: Path) -> None:
    queue = backlog(tmp_path)
    for step in range(1, 51):
        queue.put(sample(step))
        on_disk = queue.path.read_text().splitlines()[1:] if queue.path.exists() else []
        assert queue.values - 2 * len(on_disk) <= 10
    assert stat.S_IMODE(queue.path.stat().st_mode) == 0o600
    queue.put(Tags(tags={"a": "b"}))
    found = drain(queue)
    assert steps(found) == list(range(1, 51))
    assert found[-1] == Tags(tags={"a": "b"})
    assert math.isnan(found[2].values["kl"])  # type: ignore[union-attr]
    assert found[48] == sample(49)  # through the file, to the last bit
    assert not queue.path.exists()
    assert queue.values == 0
    queue.put(sample(60))  # and it is memory again
    assert not queue.path.exists()


def test_rows_put_while_the_file_is_read_keep_their_turn(tmp_path: Path) -> None:
    queue = backlog(tmp_path)
    found: list[Item] = []
    for step in range(1, 41):
        queue.put(sample(step))
        if step % 3 == 0:
            found += queue.take(2)
            queue.done()
    assert steps(found + drain(queue)) == list(range(1, 41))


def test_what_was_taken_and_not_confirmed_is_taken_again(tmp_path: Path) -> None:
    queue = backlog(tmp_path)
    for step in (1, 2, 3):
        queue.put(sample(step))
    assert steps(list(queue.take(4))) == [1, 2]
    assert steps(list(queue.take(4))) == [1, 2]
    queue.to_disk()
    queue.done()  # a call that hung until now
    assert steps(drain(queue)) == [1, 2, 3]


def test_a_backlog_on_disk_is_the_same_backlog_in_another_process(tmp_path: Path) -> None:
    queue = backlog(tmp_path)
    assert queue.to_disk() is None
    for step in range(1, 21):
        queue.put(sample(step))
    queue.take(4)
    queue.done()
    queue.put(Status(status="FINISHED", end_time=5))
    assert queue.to_disk() == queue.path
    found = Backlog.of_file(queue.path)
    assert (found.run_id, found.store, found.values) == ("r1", "http://here", 36)
    items = drain(found)
    assert steps(items) == list(range(3, 21))
    assert items[-1] == Status(status="FINISHED", end_time=5)


def test_a_resumed_run_goes_on_where_the_killed_one_stopped(tmp_path: Path) -> None:
    first = backlog(tmp_path, most=2)
    for step in (1, 2, 3, 4):
        first.put(sample(step))
    with first.path.open("a") as file:
        file.write('{"timestamp": 10')  # the kill
    second = backlog(tmp_path, most=2)
    second.put(sample(5))
    found = drain(second)
    assert steps(found) == [2, 3, 4, 5]  # the first was in the memory that died
    assert second.unreadable == 1


def test_a_full_disk_loses_only_what_comes_then_and_no_line_in_part(tmp_path: Path) -> None:
    queue = backlog(tmp_path, most=2)
    queue.put(sample(1))
    queue.put(sample(2))
    lost = []
    with full_disk(queue.path.stat().st_size + 100):
        for step in range(3, 8):
            try:
                queue.put(sample(step))
            except OSError:
                lost.append(step)
    queue.put(sample(8))
    assert lost
    assert all(json.loads(line) for line in queue.path.read_text().splitlines())
    assert steps(drain(queue)) == [step for step in range(1, 9) if step not in lost]


def test_moving_to_a_full_disk_leaves_everything_where_it_was(tmp_path: Path) -> None:
    queue = backlog(tmp_path, most=20)
    for step in range(1, 8):
        queue.put(sample(step))
    with full_disk(200), pytest.raises(OSError, match="large"):
        queue.to_disk()
    assert [path.name for path in tmp_path.iterdir()] == []
    assert steps(drain(queue)) == list(range(1, 8))


def test_another_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(UsageError, match="No such file"):
        Backlog.of_file(path)
    for content in ("", "[]", '{"loss": 1}\n', "no json", '"text"'):
        path.write_text(content)
        with pytest.raises(UsageError, match="names no run; expected a file undelivered"):
            Backlog.of_file(path)
