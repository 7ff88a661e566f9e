"""Writes down, inside a probe, what its command does beside what CanaryCallback records of a training: what every
trainer of the process logs, also one without the callback that evaluates a saved model; what is saved; what it costs.
"""

import atexit
import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from functools import wraps
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from canary_mlflow.upgrading.imports import Imports, peak

FOLDER = "CANARY_RECORDING"
KERNEL = 50_000  # rounds of the loop that CPU time is measured in
ASIDE = ("on_evaluate", "on_save")
"""What follows work within train() that is no step."""
SAVERS = {
    "transformers.configuration_utils": ("PreTrainedConfig", "PretrainedConfig"),
    "transformers.generation.configuration_utils": ("GenerationConfig",),
    "transformers.tokenization_utils_base": ("PreTrainedTokenizerBase",),
    "peft.config": ("PeftConfigMixin",),
}
"""What saves texts with its save_pretrained, into a folder, by the names that it has in different releases."""
TEXTS = (".json", ".jinja", ".txt")
NUMBER = "_canary_number"
LONGEST = 2**20  # bytes; of a longer text only the name is kept
LONGEST_NAME, LONGEST_LIST = 80, 300
NOTHING: tuple[Any, ...] = (None, "", [], {})


class Recorder:
    """What one process did. `outside`: CPU seconds that went neither into imports nor into the steps of a training:
    before and after it, into evaluation and saving, and into other processes."""

    def __init__(self, folder: str, imports: Imports) -> None:
        self.path = Path(folder) / f"{time.time():.6f}-{os.getpid()}.json"
        self.imports = imports
        self.met = 0
        self.logged: list[dict[str, Any]] = []
        self.tensors: list[dict[str, Any]] = []
        self.texts: list[dict[str, Any]] = []
        self.trained = 0.0
        self.began: float | None = None  # since when a training goes on
        self.at = 0.0  # when its last step, or what followed it, was over
        self.memory: list[float] = []  # MiB without imports: at the first step, at the end
        self.kernels: list[float] = []

    def watch(self) -> None:
        """From now on, until Python ends."""
        self.imports.after("transformers.trainer_callback", self.of_trainers)
        self.imports.after("safetensors.torch", lambda module: self.of_tensors(module, "save_file"))
        self.imports.after("torch", lambda module: self.of_tensors(module, "save"))
        for module in SAVERS:
            self.imports.after(module, self.of_texts)
        atexit.register(self.write)

    def of_trainers(self, module: ModuleType) -> None:
        """Hear all that trainers tell their callbacks."""
        tell = module.CallbackHandler.call_event

        @wraps(tell)
        def tells(own: Any, event: str, args: Any, state: Any, control: Any, **named: Any) -> Any:
            self.before(event)
            answer = tell(own, event, args, state, control, **named)
            self.after(event)
            if event == "on_log":
                self.log(own, state.global_step, named["logs"])
            return answer

        module.CallbackHandler.call_event = tells

    def log(self, handler: Any, step: int, logged: Mapping[str, Any]) -> None:
        """Some trainer has logged. Which one, in the order in which they first did, the handler of its callbacks
        bears."""
        if NUMBER not in vars(handler):
            vars(handler)[NUMBER] = self.met
            self.met += 1
        numbers = {key: float(value) for key, value in logged.items() if isinstance(value, (int, float))}
        self.logged.append({"trainer": vars(handler)[NUMBER], "step": step, "values": numbers})

    def before(self, event: str) -> None:
        """No callback has been told of it yet."""
        if event == "on_train_begin":
            self.kernels.append(kernel())
            self.began = self.at = self.spent()
        elif event == "on_step_begin":
            self.memory = self.memory or [peak() - self.imports.memory]
        elif event in ASIDE and self.began is not None:
            self.trained -= self.spent() - self.at

    def after(self, event: str) -> None:
        """All callbacks have been told of it."""
        if event == "on_train_end" and self.began is not None:
            self.trained += self.spent() - self.began
            self.began = None
            self.memory = [*self.memory[:1], peak() - self.imports.memory]
        elif event in ("on_step_end", *ASIDE):
            self.at = self.spent()

    def of_tensors(self, module: ModuleType, name: str) -> None:
        """Follow what is saved as a table of tensors; what else torch.save writes is none of ours."""
        save = getattr(module, name)
        taken = signature(save)

        @wraps(save)
        def saves(*given: Any, **named: Any) -> Any:
            answer = save(*given, **named)
            table, place, *_ = taken.bind(*given, **named).arguments.values()
            rows = table.items() if isinstance(table, Mapping) and isinstance(place, (str, os.PathLike)) else ()
            tensors = {str(key): told(one) for key, one in rows if hasattr(one, "untyped_storage")}
            if tensors or (name == "save_file" and not table):  # an empty table is saved, too, and holds nothing
                self.tensors.append({"file": Path(place).name, "holds": tensors})
            return answer

        setattr(module, name, saves)

    def of_texts(self, module: ModuleType) -> None:
        """Follow which texts are saved, and what those in JSON hold."""
        owner = next((getattr(module, name) for name in SAVERS[module.__name__] if hasattr(module, name)), None)
        if owner is None:
            return
        save = owner.save_pretrained

        @wraps(save)
        def saves(own: Any, save_directory: Any, *given: Any, **named: Any) -> Any:
            before = texts(save_directory)
            answer = save(own, save_directory, *given, **named)
            changed = [path for path, when in texts(save_directory).items() if before.get(path) != when]
            self.texts += [{"file": path.name, "holds": settings(path, type(own))} for path in changed]
            return answer

        owner.save_pretrained = saves

    def spent(self) -> float:
        """CPU seconds of this process so far, without imports."""
        return time.process_time() - self.imports.seconds

    def write(self) -> None:
        """Python ends."""
        if not (self.logged or self.tensors or self.texts):
            return
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        outside = self.spent() - self.trained + children.ru_utime + children.ru_stime
        self.kernels.append(kernel())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({
            "logged": self.logged, "tensors": self.tensors, "texts": self.texts, "memory": self.memory,
            "outside": outside, "kernel": sum(self.kernels) / len(self.kernels),
        }))  # fmt: skip


def told(tensor: Any) -> list[Any]:
    """A tensor's shape, type, and, if it holds fractions, its norm and the sum of every second element less the others:
    a small change turns that by about its own size, a norm by much less. Of one that cannot tell them, its class."""
    try:
        if not tensor.is_floating_point() or tensor.is_meta:
            return [list(tensor.shape), str(tensor.dtype), None, None]
        flat, exact = tensor.detach().flatten(), {"dtype": sys.modules["torch"].float64}
        other = flat[::2].sum(**exact) - flat[1::2].sum(**exact)
        return [list(tensor.shape), str(tensor.dtype), float(flat.norm(**exact)), float(other)]
    except Exception:  # noqa: BLE001 - classes of others, such as PyTorch's for a parameter without a shape yet
        return [[], type(tensor).__name__, None, None]


def texts(folder: Any) -> dict[Path, int]:
    """The texts in a folder, and when each was written, in ns."""
    try:
        return {path: path.stat().st_mtime_ns for path in sorted(Path(folder).iterdir()) if path.suffix in TEXTS}
    except OSError:  # it is made only when something is saved
        return {}


def settings(path: Path, owner: type) -> dict[str, tuple[str | None, bool]]:
    """What a table in JSON holds, by name: its value as `setting` has it, None for none, and whether `owner`, the class
    that saved it, assumes it for a missing key. {} for any other text, or a long one. Left out is what begins with _, a
    library's own note, such as the folder that a model was loaded from."""
    try:
        table = json.loads(path.read_text()) if path.suffix == ".json" and path.stat().st_size <= LONGEST else {}
    except (OSError, ValueError):
        return {}
    assumed = defaults(owner)
    return {
        key: (None if value in NOTHING else setting(value) if "version" not in key else "",
              key in assumed and bool(assumed[key] == value))
        for key, value in (sorted(table.items()) if isinstance(table, dict) else ()) if not key.startswith("_")
    }  # fmt: skip


def setting(value: Any) -> str:
    """A number, a truth, a name, or a list of those in any order; '' for what may differ from run to run, such as a
    folder, and for anything else."""
    if isinstance(value, list):
        parts = sorted(map(setting, value))
        told = ", ".join(parts) if all(parts) else ""
        return told if len(told) <= LONGEST_LIST else ""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_NAME and not {*"/\\"} & {*value} else ""
    return json.dumps(value) if isinstance(value, (bool, int, float)) else ""


def defaults(owner: type) -> dict[str, Any]:
    """What a class's constructor assumes for what it is not given, as far as it names it."""
    try:
        taken = signature(owner).parameters
    except (TypeError, ValueError):
        return {}
    return {name: one.default for name, one in taken.items() if one.default is not one.empty}


def kernel() -> float:
    """CPU seconds of a fixed loop right now: the unit in which neighbours change nothing."""

    def once() -> float:
        began = time.process_time()
        sum(at * at for at in range(KERNEL))
        return time.process_time() - began

    return min(once() for _ in range(3))
