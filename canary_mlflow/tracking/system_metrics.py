"""The machine's load during a run: MLflow's system metrics, sent with the run's own numbers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import psutil

from canary_mlflow.errors import one_line
from canary_mlflow.tracking.delivery.recorder import PERIOD, Recorder
from canary_mlflow.tracking.delivery.thread_clock import ThreadClock
from canary_mlflow.tracking.observers import Ending, Observer

PREFIX = "system/"  # by which MLflow's UI recognises them


class SystemMetrics(Observer):
    """CPU, memory, disk and network by psutil, NVIDIA GPUs by pynvml, as often as rows are sent; in a separate
    thread.

    The samplers are MLflow's, but not the sending: MLflow's SystemMetricsMonitor asks the store for the run's status at
    each sample, stops for good when that fails, and holds up the end of a run whose server is dead. Intervals come
    from MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL and …_SAMPLES_BEFORE_LOGGING, which MLflow reads too. Does nothing for
    a run that MLflow already monitors.
    """

    name = "system metrics"

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = ""
        self._clock = ThreadClock()

    def begin(self, recorder: Recorder | None) -> None:
        from mlflow.tracking.fluent import run_id_to_system_metrics_monitor

        if recorder is None or self._run_id in run_id_to_system_metrics_monitor:
            return
        self._thread = threading.Thread(target=self._work, args=(recorder,), name="canary-system", daemon=True)
        self._thread.start()

    def finish(self, ending: Ending) -> Mapping[str, str]:
        self._end.set()
        if self._thread is not None:
            self._thread.join(2.0)
        if self._trouble:
            raise RuntimeError(self._trouble)
        return {}

    def _work(self, recorder: Recorder) -> None:
        from mlflow.environment_variables import (
            MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING,
            MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL,
        )

        interval = MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL.get() or PERIOD
        samples = MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING.get() or 1
        try:
            monitors = _monitors()
            psutil.cpu_percent()  # its very first answer is a meaningless 0
            taken = sent = 0
            while not self._end.is_set():
                self._end.wait(interval)
                with self._clock.working():
                    for monitor in monitors:
                        monitor.collect_metrics()
                    taken += 1
                    if taken % samples == 0 or self._end.is_set():
                        recorder.put(sent, {PREFIX + name: float(value) for name, value in _take(monitors).items()})
                        sent += 1
        except Exception as error:  # noqa: BLE001 - drivers raise anything; reported at the end
            self._trouble = f"{type(error).__name__}: {one_line(error)}"


def _monitors() -> list[Any]:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    monitors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    try:
        monitors.append(GPUMonitor())
    except Exception:  # noqa: BLE001 - raised if pynvml, its driver or a GPU is missing
        return monitors
    return monitors


def _take(monitors: list[Any]) -> dict[str, float]:
    """The means over the samples since the last call."""
    values: dict[str, float] = {}
    for monitor in monitors:
        values.update(monitor.aggregate_metrics())
        monitor.clear_metrics()
    return values
