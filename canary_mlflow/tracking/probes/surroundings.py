"""What only torch and the trainer's own objects tell about a training that begins, and what NVIDIA's driver says about
its GPU: utilisation, memory, power, clock."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch

from canary_mlflow.gates.model.metrics import MEANINGS
from canary_mlflow.tracking.describing import fingerprint
from canary_mlflow.tracking.describing.gpus import driver_name, handle
from canary_mlflow.tracking.probes import Probe, Row, Setting
from canary_mlflow.tracking.probes.memory import MIB

EVERY = 5  # steps between readings: each takes some 100 µs of the driver


class GPU(Probe):
    """`gpu_utilization` (%, of the driver's last sample period), `gpu_memory` (MiB, of all processes), `gpu_power` (W),
    `gpu_clock` (MHz, of the multiprocessors).

    The device is found by its UUID, because the driver's order of devices is not CUDA's. On a MIG slice memory is the
    slice's, power and clock the whole card's, and there is no utilisation. What the driver does not answer has no
    series; without a GPU, a driver or nvidia-ml-py there is none at all. The first rank's device only.

    Read right before the optimizer's step, while the step's kernels run: at its end the GPU has been waited for and
    idles, which says nothing of its clock. A trainer that does not say when that is, is asked at the end.
    """

    name = "gpu"

    def __init__(self) -> None:
        self._readings: Mapping[str, Callable[[], float]] = {}
        self._shutdown: Callable[[], None] | None = None
        self._steps = 0
        self._read: Row | None = None  # since the step's end; None: nothing was asked yet

    def start(self, setting: Setting) -> None:
        if setting.device != "cuda":
            return
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return  # no driver to ask
        self._shutdown = pynvml.nvmlShutdown
        self._readings = readings(pynvml, device_name())

    def listens(self, event: str) -> bool:
        return bool(self._readings) and super().listens(event)

    def before_optimizer(self) -> None:
        if self._readings and self._read is None:
            self._read = self._ask()

    def step_ended(self, row: Row) -> None:
        if self._readings:
            row.update(self._ask() if self._read is None else self._read)
            self._read = None

    def _ask(self) -> Row:
        self._steps += 1
        return {name: read() for name, read in self._readings.items()} if self._steps % EVERY == 1 else {}

    def stop(self) -> None:
        self._readings = {}
        if self._shutdown is not None:
            self._shutdown()
            self._shutdown = None


def device_name() -> str:
    """The name by which the driver knows torch's current device."""
    import os

    import torch

    index = torch.cuda.current_device()
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return driver_name(os.environ.get("CUDA_VISIBLE_DEVICES"), index, None if uuid is None else str(uuid))


def readings(nvml: Any, name: str) -> Mapping[str, Callable[[], float]]:
    """The readings that the driver supports for this device. `nvml`: the module pynvml."""
    device = handle(nvml, name)
    card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device) if name.startswith("MIG-") else device
    wanted: dict[str, Callable[[], float]] = {
        "gpu_utilization": lambda: float(nvml.nvmlDeviceGetUtilizationRates(device).gpu),
        "gpu_memory": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used / MIB,
        "gpu_power": lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1000,  # milliwatts
        "gpu_clock": lambda: float(nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
    }
    answered = {}
    for metric, read in wanted.items():
        try:
            read()
        except nvml.NVMLError:
            continue  # not supported here: no series
        answered[metric] = read
    return answered


SWITCHES = ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")
"""Variables of the environment that make kernels slower, or others."""


def make_log_honest(args: Any, state: Any, every_step: bool) -> int:
    """Turn off the filter that logs a NaN loss as 0.0, and make a trainer that logs by steps log every one. Returns how
    many steps its user wanted between two logs; 1 if nothing was changed."""
    args.logging_nan_inf_filter = False
    if not every_step or getattr(args.logging_strategy, "value", args.logging_strategy) != "steps":
        return 1
    wanted, state.logging_steps = state.logging_steps, 1  # the trainer reads the state; the user's arguments stay
    return int(wanted)


def running_trainer() -> Any:
    """The trainer that sends the current event, or None.

    Transformers passes callbacks everything except the trainer, but only the trainer knows the reference model and
    calls the reward functions; while an event is handled, it is above us on the stack.
    """
    return _above(lambda held: held["self"])


def running_batch() -> Any:
    """The batch that the trainer above us on the stack has just evaluated, as its collator made it, or None."""

    def taken(held: Mapping[str, Any]) -> Any:
        found = held.get("inputs")
        if found is not None and isinstance(held, dict):
            held.clear()  # up to Python 3.12 a copy, which the frame would keep, with the logits that it lets go
        return found

    return _above(taken)


def trains_at(frame: FrameType | None, kind: Any = None) -> bool:
    """Whether a trainer's method is on the stack there, or one of this kind of object."""
    return _above(lambda held: True, frame, kind) is not None


def is_running(one: Any) -> bool:
    """Whether any thread is in a method of this object."""
    frames = list(sys._current_frames().values())
    return any(_above(lambda held: held["self"] is one or None, frame, type(one)) for frame in frames)


def _above(pick: Callable[[Mapping[str, Any]], Any], frame: FrameType | None = None, kind: Any = None) -> Any:
    """The first thing that `pick` finds among the variables of a trainer's methods on the stack, or of an object's of
    another `kind`, from `frame` or from above us; None if there is nothing."""
    kind = kind or getattr(sys.modules.get("transformers.trainer"), "Trainer", ())
    frame = frame or sys._getframe(2)
    while frame is not None:
        held = frame.f_locals
        if isinstance(held.get("self"), kind) and (found := pick(held)) is not None:
            return found
        frame = frame.f_back
    return None


def hardware_of(args: Any) -> dict[str, str]:
    """The class of hardware that this process trains on, with the threads torch uses on a CPU."""
    device = torch.device(args.device)
    if device.type == "cuda":
        count = max(int(args.world_size), int(args.n_gpu))
        return fingerprint.hardware("cuda", device=torch.cuda.get_device_name(device), count=count)
    if device.type == "mps":  # Apple's GPU is a part of its chip
        return fingerprint.hardware("mps", device=fingerprint.cpu_model(), count=1)
    return {**fingerprint.hardware(device.type), "threads": str(torch.get_num_threads())}


def environment_of(args: Any) -> dict[str, str]:
    """Versions, host and commit, what its metrics mean, plus what only torch knows."""
    facts = fingerprint.environment() | fingerprint.script() | {**MEANINGS, "torch": torch.__version__}
    facts["cuda"] = f"rocm {torch.version.hip}" if torch.version.hip else str(torch.version.cuda)
    if torch.device(args.device).type != "cuda":
        return facts | {"device": str(args.device)}
    return facts | {"device": f"{args.device} {device_name()}", **gpu_settings(int(args.world_size))}


def gpu_settings(ranks: int) -> dict[str, str]:
    """What changes the kernels or the memory of a training without being an argument of it, where it is not torch's
    default."""
    attention = torch.backends.cuda
    off = [
        name
        for name, used in (
            ("flash", attention.flash_sdp_enabled()),
            ("memory-efficient", attention.mem_efficient_sdp_enabled()),
            ("math", attention.math_sdp_enabled()),
            ("cudnn", attention.cudnn_sdp_enabled()),
        )
        if not used
    ]
    precision = torch.get_float32_matmul_precision()
    allocator = os.environ.get("PYTORCH_ALLOC_CONF", "") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    nccl = torch.cuda.nccl.version() if ranks > 1 and torch.distributed.is_nccl_available() else ()
    found = {
        "allocator": allocator,
        "matmul_precision": "" if precision == "highest" else precision,
        "cudnn_benchmark": "true" if torch.backends.cudnn.benchmark else "",
        "attention_off": ", ".join(off),
        "nccl": ".".join(map(str, nccl)),
        **{key.lower(): os.environ.get(key, "") for key in SWITCHES},
    }
    return {f"gpu_{key}": value for key, value in found.items() if value}
