"""Sees every import of a process from its start: what it takes, and when a module is there, to change it before
anything else uses it. Loads nothing by itself."""

import _frozen_importlib  # what the interpreter calls for every import that is not there yet
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]


class Imports:
    """`seconds`, `memory`: what the main thread's imports took, in CPU seconds and MiB: other releases load more or
    fewer modules."""

    def __init__(self) -> None:
        self.seconds = self.memory = 0.0
        self._within = False
        self._waiting: dict[str, list[Change]] = {}

    def watch(self) -> None:
        """Follow every import from now on."""
        load = _frozen_importlib._find_and_load  # type: ignore[attr-defined]

        def watched(name: str, *given: Any) -> Any:
            found = self._measured(load, name, *given)
            if name in self._waiting and not _begun(module := sys.modules[name]):
                for change in self._waiting.pop(name):
                    _make(change, module)
            return found

        _frozen_importlib._find_and_load = watched  # type: ignore[attr-defined]

    def after(self, module: str, change: Change) -> None:
        """Change this module when it is loaded; at once if it is there already. A release that lacks what would be
        changed stays as it is."""
        if module in sys.modules:
            _make(change, sys.modules[module])
        else:
            self._waiting.setdefault(module, []).append(change)

    def _measured(self, load: Callable[..., Any], *given: Any) -> Any:
        if self._within or threading.current_thread() is not threading.main_thread():
            return load(*given)
        self._within, began, before = True, time.process_time(), resident()
        try:
            return load(*given)
        finally:
            self._within = False
            self.seconds += time.process_time() - began
            self.memory += resident() - before


def _begun(module: ModuleType) -> bool:
    """Whether it is still being loaded, as it is for what it imports and what imports it in turn."""
    return bool(getattr(module.__spec__, "_initializing", False))


def _make(change: Change, module: ModuleType) -> None:
    with suppress(AttributeError):
        change(module)


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
