"""Stands in for a GPU's driver and clock where there is no GPU. It does not show what a real one does."""

from __future__ import annotations

from typing import Any


class Driver:
    """What NVML answers about two cards and one slice of the second."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def __init__(self, *models: str) -> None:
        self.asked: list[str] = []
        self.models = models or ("H100", "H100")

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return self.models[int(handle.split()[-1])]

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"card {index}"

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return {"card 0": b"GPU-aa11", "card 1": b"GPU-bb22"}[handle]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        return "slice" if uuid.startswith("MIG-") else {"GPU-aa11": "card 0", "GPU-bb22": "card 1"}[uuid]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        return "card 1"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle == "slice":
            raise self.NVMLError("not supported")
        return type("Rates", (), {"gpu": 87})

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return type("Memory", (), {"used": {"slice": 5, "card 1": 40}.get(handle, 0) * 2**30, "total": 80 * 2**30})

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return {"card 1": 412_500}[handle]

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return {"card 1": 1980}[handle]


class LateGPU:
    """CUDA's clock: a kernel ends some time after its launch, and so do the events behind it in the stream. Time is
    made up too, a microsecond for each look at it, so that a busy machine changes nothing."""

    def __init__(self) -> None:
        self._now = 0.0
        self._free = 0.0  # when the last kernel ends

    def perf_counter(self) -> float:
        self._now += 1e-6
        return self._now

    def launch(self, seconds: float) -> None:
        self._free = max(self._free, self._now) + seconds

    def synchronize(self) -> None:
        self._now = max(self._now, self._free)

    def Event(self, enable_timing: bool) -> Any:
        gpu = self

        class Event:
            def record(self) -> None:
                self.at = max(gpu._free, gpu._now)

            def elapsed_time(self, later: Event) -> float:
                if gpu._now < later.at:
                    raise RuntimeError("CUDA error: device not ready")
                return (later.at - self.at) * 1000

        return Event()
