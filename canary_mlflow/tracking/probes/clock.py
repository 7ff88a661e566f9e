"""Wall time and CPU time of a step, end to end, and how much of it was waiting."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from canary_mlflow.tracking.probes import Probe, Row, Setting

NAP = 1e-6  # seconds slept at the start, to see whether the kernel counts it


class Waiting:
    """Of the thread that makes it, the time in which it neither computed nor stood in line for a core. Linux only.

    Whoever waits gives up the core, and the kernel counts how often a thread does. While that count stands still,
    nothing was waited for: then this one call is all that a step costs, as reading the clock and the time in line takes
    three times as long. Where the kernel does not count, both are read every time.
    """

    def __init__(self) -> None:
        """Raises OSError where the kernel does not tell how long a thread stands in line."""
        self._line: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self.usage: Any = resource.getrusage(resource.RUSAGE_THREAD)  # as the kernel gave it last
        time.sleep(NAP)
        self._counted = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > self.usage.ru_nvcsw
        self._times = -1  # how often the core was given up when the clocks were read
        self._read = self._seconds = 0.0

    def seconds(self, *, afresh: bool = False) -> float:
        """Seconds of waiting since an unknown moment. `afresh`: read the clocks in any case. By what they have run on
        without a wait (a virtual machine that was halted), the next wait is then not longer."""
        usage = self.usage = resource.getrusage(resource.RUSAGE_THREAD)
        waited = usage.ru_nvcsw != self._times or not self._counted
        if (waited or afresh) and self._line is not None:
            in_line = int(os.pread(self._line, 64, 0).split()[1]) / 1e9
            read = time.perf_counter() - time.thread_time() - in_line
            if waited:
                self._seconds += read - self._read
            self._read, self._times = read, usage.ru_nvcsw
        return self._seconds

    def close(self) -> None:
        """Leave no file open; no more seconds are counted."""
        if self._line is not None:
            os.close(self._line)
            self._line = None


LONG = 0.002  # seconds from which a pause is told of
TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds that the kernel counts a process's CPU time in
MUCH = 5 * TICK  # CPU seconds outside of steps from which they are told of


class Clock(Probe):
    """Times from one step's end to the next one's, starting when training begins.

    `outside_time` is the CPU time between steps, since the row before that told of it: evaluating, saving, what the
    script does there. `setup_time`, in the first row, is what this process and its children took to load and prepare,
    without libraries (see `begin`), or since their last training ended.

    End to end, because data loading and rollouts happen outside step_begin..step_end, and TRL's PPOTrainer has no
    step_begin at all. Evaluation and saving between steps are taken out, and kept as `pause_time` of the next step.
    CPU time is that of the process, without our own writer's: the number to judge by if neighbours share the machine.

    `data_wait` lasts from the end of everything that belongs to the last step until the batches of this one are there;
    `compute_time` from there to the step's end. Transformers fetches all batches of an optimizer step before it reports
    that the step begins. PPO's rollout happens at the same point but is not waiting, so PPO has no data_wait.

    `step_wait` is the time in which this thread neither computed nor stood in line for a core: it slept, or waited for
    a disk, a network or other processes. CPU time does not have it, and neighbours do not add to it. Only on a CPU, on
    Linux, and of one rank: others wait for each other, and with a GPU the trainer waits for that.

    `usage`: what the kernel had counted for this process and thread at the step's end, for whoever takes it first; None
    where nobody asked.
    """

    name = "clock"
    trained: ClassVar[tuple[int, float]] = 0, 0.0  # a process, and its CPU seconds that no training to come answers for

    def __init__(self) -> None:
        self._idle_cpu: Callable[[], float] = float
        self._iterates = False
        self._epochs_seen = False
        self._left = 0.0  # seconds taken out since a row last told of them
        self._outside = TICK  # the same, CPU seconds; in the first row no less, as clocks do not stand still
        self._setup = 0.0  # CPU seconds before this training
        self._stepped = False
        self._ready = 0.0  # when the next batch could be fetched
        self._mark = 0.0, 0.0, 0.0  # wall time, CPU time and waiting at the last step or pause
        self._began: float | None = None
        self._wait: Callable[[], None] | None = None
        self._waiting: Waiting | None = None
        self.usage: Any = None

    def start(self, setting: Setting) -> None:
        self._idle_cpu, self._iterates = setting.idle_cpu, setting.iterates
        if setting.device == "cuda":
            import torch

            self._wait = torch.cuda.synchronize
        if setting.device == "cpu" and setting.ranks == 1 and self._waiting is None:
            with suppress(OSError):
                self._waiting = Waiting()
        self._setup = max(TICK, _cpu_of_all() - _answered())
        self._step = self._iteration = self._mark = self._now()
        self._ready = self._mark[0]

    def step_began(self) -> None:
        self._began = time.perf_counter()

    def step_ended(self, row: Row) -> None:
        now = wall, cpu, waited = self._now()
        row["step_time"], row["step_cpu_time"] = wall - self._step[0], cpu - self._step[1]
        if self._waiting is not None:
            row["step_wait"] = max(0.0, waited - self._step[2])
            self.usage = self._waiting.usage
        if self._iterates and not self._epochs_seen:
            # TRL's PPOTrainer reports no epochs; its step is the iteration.
            row["iteration_time"], row["iteration_cpu_time"] = row["step_time"], row["step_cpu_time"]
        if self._began is not None:
            row["compute_time"] = wall - self._began
            if not self._iterates:
                row["data_wait"] = self._began - self._ready
        if not self._stepped:
            row["setup_time"] = self._setup
        if self._outside > MUCH or not self._stepped:
            row["outside_time"], self._outside = self._outside, 0.0
        if self._left > LONG:
            row["pause_time"], self._left = self._left, 0.0
        self._step = self._mark = now
        self._ready, self._began, self._stepped = wall, None, True

    def logged(self) -> None:
        self._ready = time.perf_counter()

    def paused(self, *, ours: bool = False) -> None:
        """What went by since the last step or pause belongs to no step; `ours`: it was measuring."""
        now = wall, cpu, waited = self._now(afresh=True)
        lost = (wall - self._mark[0], cpu - self._mark[1], waited - self._mark[2])
        self._step = (self._step[0] + lost[0], self._step[1] + lost[1], self._step[2] + lost[2])
        self._iteration = (self._iteration[0] + lost[0], self._iteration[1] + lost[1], 0.0)
        self._left += lost[0] if self._stepped else 0.0  # what comes before is the start
        self._outside += 0.0 if ours else lost[1]
        self._mark = now
        self._ready = now[0]

    def iteration_began(self) -> None:
        self._epochs_seen = True

    def iteration_ended(self, row: Row) -> None:
        if not self._iterates:
            return
        now = self._now()
        row["iteration_time"] = now[0] - self._iteration[0]
        row["iteration_cpu_time"] = now[1] - self._iteration[1]
        self._iteration = now

    def stop(self) -> None:
        Clock.trained = os.getpid(), _cpu_of_all()
        if self._waiting is not None:
            self._waiting.close()

    def _now(self, *, afresh: bool = False) -> tuple[float, float, float]:
        """Wall time, CPU time, and waiting, the last one since an unknown moment."""
        if self._wait is not None:
            self._wait()
        wall, cpu = time.perf_counter(), time.process_time() - self._idle_cpu()
        return wall, cpu, 0.0 if self._waiting is None else self._waiting.seconds(afresh=afresh)


def begin() -> None:
    """The process has its libraries: from now on, its CPU time belongs to its first training. Called again, this does
    nothing."""
    if Clock.trained == (0, 0.0):
        Clock.trained = os.getpid(), _cpu_of_all()


def _answered() -> float:
    """CPU seconds of this process that its next training does not answer for: none in a fork, which begins anew."""
    process, seconds = Clock.trained
    return seconds if process == os.getpid() else 0.0


def _cpu_of_all() -> float:
    """CPU seconds of this process, and of those that it started and that have ended."""
    return sum(os.times()[:4])
