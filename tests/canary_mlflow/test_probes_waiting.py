"""What a step waits for, told by the kernel's count of waits; and one hook on the model for all probes that look."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from typing import Any

import pytest
import torch
from probe_setting import setting

from canary_mlflow.tracking.delivery.thread_clock import ThreadClock, writing_seconds
from canary_mlflow.tracking.probes import BEAT, Row
from canary_mlflow.tracking.probes.clock import Clock, Waiting
from canary_mlflow.tracking.probes.hooks import ForwardHook
from canary_mlflow.tracking.probes.memory import POINTS, WARMUP, Memory, resident_peak


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.fixture
def waiting() -> Any:
    with_file = Waiting()
    yield with_file
    with_file.close()


def test_a_sleep_is_waiting_and_computing_is_not(waiting: Waiting) -> None:
    began = waiting.seconds()
    compute(0.05)
    computed = waiting.seconds()
    time.sleep(0.05)
    slept = waiting.seconds()
    assert computed - began < 0.01
    assert 0.045 <= slept - computed < 0.2


def test_the_clocks_are_read_only_after_a_wait(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting.seconds(afresh=True)
    reads: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *given: reads.append(1) or pread(*given))
    for _ in range(200):
        waiting.seconds()
    assert len(reads) < 20  # a busy machine may make this thread wait for the interpreter
    reads.clear()
    for _ in range(5):
        time.sleep(0.001)
        waiting.seconds()
    assert len(reads) == 5


def test_a_machine_that_was_halted_did_not_wait(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    began = waiting.seconds(afresh=True)
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + 5.0)  # the wall clock went on without this thread
    waiting.seconds(afresh=True)
    time.sleep(0.01)
    assert waiting.seconds() - began < 1.0


def test_where_the_kernel_does_not_count_waits_the_clocks_tell(waiting: Waiting) -> None:
    waiting._counted = False
    began = waiting.seconds()
    time.sleep(0.03)
    assert 0.025 <= waiting.seconds() - began < 0.2


def test_a_peak_is_seen_at_each_step_and_the_resident_set_as_often_as_its_growth_needs_it() -> None:
    clock = Clock()
    memory = Memory(clock)
    for probe in (clock, memory):
        probe.start(setting())
    rows: list[Row] = [{} for _ in range(WARMUP + 8 * POINTS)]
    for row in rows:
        clock.step_ended(row)
        memory.step_ended(row)
    clock.stop()
    assert all("peak_memory" in row for row in rows)
    told = [step for step, row in enumerate(rows, 1) if "allocated_memory" in row]
    assert told[: WARMUP + POINTS] == list(range(1, WARMUP + POINTS + 1))
    assert max(later - step for step, later in pairwise(told)) == BEAT
    assert not any(step % BEAT for step in told[-POINTS:])  # with the sentinel, so that other steps are left alone
    assert all("allocated_memory" in row for row in rows if "memory_growth" in row)
    assert all(row["peak_memory"] >= row.get("allocated_memory", 0.0) for row in rows)


def test_the_peak_needs_no_clock() -> None:
    clock = Clock()
    clock.start(setting())
    clock.step_ended({})
    memory = Memory(clock)
    memory.start(setting())
    memory.step_ended({})
    clock.stop()  # as if it had broken: what it told last must not stay the peak
    assert clock.usage is None
    memory.step_ended(row := {})
    assert row["peak_memory"] == pytest.approx(resident_peak(), rel=0.05)


def test_a_writers_cpu_time_counts_while_it_works_and_afterwards() -> None:
    before, clock = writing_seconds(), ThreadClock()
    at_work, go_on = threading.Event(), threading.Event()

    def write() -> None:
        with clock.working():
            compute(0.02)
            at_work.set()
            go_on.wait()

    thread = threading.Thread(target=write)
    thread.start()
    at_work.wait()
    assert 0.02 <= writing_seconds() - before < 0.2
    go_on.set()
    thread.join()
    assert 0.02 <= writing_seconds() - before < 0.2


def test_hooks_of_one_model_share_one_of_torchs_and_leave_nothing_behind() -> None:
    model, seen = torch.nn.Linear(2, 2), []
    first = ForwardHook(model, lambda inputs, output: seen.append(("first", set(inputs))))
    second = ForwardHook(model, lambda inputs, output: seen.append("second"), lambda *_: seen.append("evaluated"))
    assert len(model._forward_hooks) == 1
    model(torch.ones(2))
    assert seen == [("first", {"input"}), "second"]
    model.eval()(torch.ones(2))
    assert seen[2:] == ["evaluated"]
    first.remove()
    model.train()(torch.ones(2))
    assert seen[3:] == ["second"]
    second.remove()
    second.remove()  # a probe may be stopped twice
    assert not model._forward_hooks
    later = ForwardHook(model, lambda *_: seen.append("later"))
    first.remove()
    model(torch.ones(2))
    assert seen[4:] == ["later"]
    later.remove()
