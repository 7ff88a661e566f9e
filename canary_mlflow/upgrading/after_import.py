"""Changes a module as soon as it is loaded, whoever imports it first. Loads nothing by itself."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]
_waiting: dict[str, list[Change]] = {}


class Finder(MetaPathFinder):
    """Finds the modules that somebody waits for, each once."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec of such a module, with a loader that changes it; None of any other."""
        spec = PathFinder.find_spec(name, path) if name in _waiting else None
        return None if spec is None or spec.loader is None else _changed(spec)


_FINDER = Finder()


def after(module: str, change: Change) -> None:
    """Change this module when it is loaded, before anything else sees it; at once if it is there already. A release
    that lacks what would be changed stays as it is."""
    if module in sys.modules:
        _make(change, sys.modules[module])
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _waiting.setdefault(module, []).append(change)


def _changed(spec: ModuleSpec) -> ModuleSpec:
    loader = spec.loader
    assert loader is not None
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        for change in _waiting.pop(spec.name, []):  # not when it is found: transformers only looks whether it is there
            _make(change, module)

    loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def _make(change: Change, module: ModuleType) -> None:
    with suppress(AttributeError):
        change(module)
