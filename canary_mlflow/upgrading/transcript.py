"""Writes down, inside a probe, what its command does: what trainers log, which tensors are saved, and what it costs.

It sees every trainer of the process, also one without the callback, such as the one that evaluates a saved model.
"""

import _frozen_importlib  # what the interpreter calls for every import that is not there yet
import atexit
import json
import os
import resource
import threading
import time
from collections.abc import Mapping
from functools import wraps
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from canary_mlflow.upgrading.after_import import after

FOLDER = "CANARY_TRANSCRIPT"
KERNEL = 50_000  # rounds of the loop that CPU time is measured in
ASIDE = ("evaluate", "predict", "_save_checkpoint", "save_model")
"""Methods of a trainer that train() calls between steps."""
LARGEST = 2**28  # elements; of a larger tensor only the shape is kept
SAVERS = {
    "transformers.configuration_utils": ("PreTrainedConfig", "PretrainedConfig"),
    "transformers.generation.configuration_utils": ("GenerationConfig",),
    "transformers.tokenization_utils_base": ("PreTrainedTokenizerBase",),
    "peft.config": ("PeftConfigMixin",),
}
"""What saves texts with its save_pretrained, into a folder, by the names that it has in different releases."""
TEXTS = (".json", ".jinja", ".txt")
REPORTERS = "transformers.integrations"
"""Where the callbacks are that send values elsewhere."""
NUMBER = "_canary_number"
LONGEST = 2**20  # bytes; of a longer text only the name is kept
LONGEST_NAME, LONGEST_LIST = 80, 300
NOTHING: tuple[Any, ...] = (None, "", [], {})


class Transcript:
    """What one process did. `outside`: CPU seconds that went neither into imports nor into the steps of a trainer's
    train(): before and after it, into evaluation and saving, and into other processes."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / f"{time.time():.6f}-{os.getpid()}.json"
        self.met = 0
        self.logged: list[dict[str, Any]] = []
        self.saved: list[dict[str, Any]] = []
        self.texts: list[dict[str, Any]] = []
        self.reporters: dict[int, list[str]] = {}
        self.imports = Imports()
        self.trained = 0.0
        self.training = self.aside = False
        self.memory: list[float] = []  # MiB without imports: at the first step, at the end
        self.kernels: list[float] = []

    def watch(self) -> None:
        """From now on, until Python ends."""
        self.imports.watch()
        after("transformers.trainer", self.of_trainers)
        after("safetensors.torch", lambda module: self.of_files(module, "save_file"))
        after("torch", lambda module: self.of_files(module, "save"))
        for module in SAVERS:
            after(module, self.of_texts)
        atexit.register(self.write)

    def of_trainers(self, module: ModuleType) -> None:
        """Follow every trainer's log and train, and what in train is not a step."""
        trainer = module.Trainer
        log, train, step = trainer.log, trainer.train, trainer.training_step

        @wraps(log)
        def logs(own: Any, *given: Any, **named: Any) -> Any:
            answer = log(own, *given, **named)
            logged = given[0] if given else named["logs"]
            numbers = {key: float(value) for key, value in logged.items() if isinstance(value, (int, float))}
            self.reporters[self.number(own)] = reporters(own)
            self.logged.append({"trainer": self.number(own), "step": own.state.global_step, "values": numbers})
            return answer

        @wraps(train)
        def trains(own: Any, *more: Any, **named: Any) -> Any:
            self.kernels.append(kernel())
            began, self.training = self.spent(), True
            try:
                return train(own, *more, **named)
            finally:
                self.trained += self.spent() - began
                self.training = False
                self.memory = [*self.memory[:1], peak() - self.imports.memory]

        @wraps(step)
        def steps(own: Any, *more: Any, **named: Any) -> Any:
            self.memory = self.memory or [peak() - self.imports.memory]
            return step(own, *more, **named)

        trainer.log, trainer.train, trainer.training_step = logs, trains, steps
        for name in ASIDE:
            if hasattr(trainer, name):
                setattr(trainer, name, self.beside(getattr(trainer, name)))

    def beside(self, method: Any) -> Any:
        """A method whose time within train() is not that of steps."""

        @wraps(method)
        def apart(own: Any, *more: Any, **named: Any) -> Any:
            if not self.training or self.aside:
                return method(own, *more, **named)
            began, self.aside = self.spent(), True
            try:
                return method(own, *more, **named)
            finally:
                self.trained -= self.spent() - began
                self.aside = False

        return apart

    def of_files(self, module: ModuleType, name: str) -> None:
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
                self.saved.append({"file": Path(place).name, "tensors": tensors})
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
            self.texts += [
                {"file": path.name, "keys": keys(path, type(own)), "values": values(path)}
                for path, changed in texts(save_directory).items() if before.get(path) != changed
            ]  # fmt: skip
            return answer

        owner.save_pretrained = saves

    def number(self, trainer: Any) -> int:
        """Which trainer it is, in the order in which they first logged. It bears its number itself: a trainer that is a
        dataclass cannot be a key."""
        if NUMBER not in vars(trainer):
            vars(trainer)[NUMBER] = self.met
            self.met += 1
        return int(vars(trainer)[NUMBER])

    def spent(self) -> float:
        """CPU seconds of this process so far, without imports."""
        return time.process_time() - self.imports.seconds

    def write(self) -> None:
        """Python ends."""
        if not (self.logged or self.saved or self.texts):
            return
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        outside = self.spent() - self.trained + children.ru_utime + children.ru_stime
        self.kernels.append(kernel())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({
            "logged": self.logged, "saved": self.saved, "texts": self.texts, "memory": self.memory, "outside": outside,
            "kernel": sum(self.kernels) / len(self.kernels), "reporters": [*self.reporters.items()],
        }))  # fmt: skip


class Imports:
    """What the main thread's imports took, in CPU seconds and MiB: other releases load more or fewer modules."""

    def __init__(self) -> None:
        self.seconds = self.memory = 0.0
        self.within = False

    def watch(self) -> None:
        """Follow every import from now on."""
        load = _frozen_importlib._find_and_load  # type: ignore[attr-defined]

        def measured(*given: Any) -> Any:
            if self.within or threading.current_thread() is not threading.main_thread():
                return load(*given)
            self.within, began, before = True, time.process_time(), resident()
            try:
                return load(*given)
            finally:
                self.within = False
                self.seconds += time.process_time() - began
                self.memory += resident() - before

        _frozen_importlib._find_and_load = measured  # type: ignore[attr-defined]


def told(tensor: Any) -> list[Any]:
    """A tensor's shape, type, and, if it holds fractions, its norm and the sum of every second element less the others:
    a small change turns that by about its own size, a norm by much less. Of one that cannot tell them, its class."""
    try:
        if not tensor.is_floating_point() or tensor.is_meta or tensor.numel() > LARGEST:
            return [list(tensor.shape), str(tensor.dtype), None, None]
        flat = tensor.detach().double().flatten()
        return [list(tensor.shape), str(tensor.dtype), float(flat.norm()), float(flat[::2].sum() - flat[1::2].sum())]
    except Exception:  # noqa: BLE001 - classes of others, such as PyTorch's for a parameter without a shape yet
        return [[], type(tensor).__name__, None, None]


def texts(folder: Any) -> dict[Path, int]:
    """The texts in a folder, and when each was written, in ns."""
    try:
        return {path: path.stat().st_mtime_ns for path in sorted(Path(folder).iterdir()) if path.suffix in TEXTS}
    except OSError:  # it is made only when something is saved
        return {}


def keys(path: Path, owner: type) -> dict[str, bool | None]:
    """What a table in JSON holds, by name, and whether `owner`, the class that saved it, assumes it for a missing
    key; {} for any other text, or a long one. None for what tells a reader nothing: no value, or a name that begins
    with _, a library's own note, such as the folder that a model was loaded from."""
    assumed = defaults(owner)
    return {
        key: None if value in NOTHING or key.startswith("_") else key in assumed and bool(assumed[key] == value)
        for key, value in table(path).items()
    }


def values(path: Path) -> dict[str, str]:
    """What a table in JSON says, by name, as far as that is the same in every run: settings, not the folders or
    releases that it was made with."""
    settings = {key: setting(value) for key, value in table(path).items() if not key.startswith("_")}
    return {key: value for key, value in settings.items() if value and "version" not in key}


def setting(value: Any) -> str:
    """A number, a truth, a name, or a list of those in any order; '' for anything else."""
    if isinstance(value, list):
        parts = sorted(map(setting, value))
        told = ", ".join(parts) if all(parts) else ""
        return told if len(told) <= LONGEST_LIST else ""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_NAME and not {*"/\\"} & {*value} else ""
    return json.dumps(value) if isinstance(value, (bool, int, float)) else ""


def table(path: Path) -> dict[str, Any]:
    """A table in JSON, by name; {} for any other text, or a long one."""
    try:
        body = json.loads(path.read_text()) if path.suffix == ".json" and path.stat().st_size <= LONGEST else None
    except (OSError, ValueError):
        return {}
    return dict(sorted(body.items())) if isinstance(body, dict) else {}


def reporters(trainer: Any) -> list[str]:
    """The callbacks of a trainer that send its values elsewhere."""
    called = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
    return sorted({type(one).__name__ for one in called if type(one).__module__.startswith(REPORTERS)})


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


def resident() -> float:
    """MiB of the process's resident set right now."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:  # no Linux
        return peak()


def peak() -> float:
    """MiB of the process's largest resident set so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
