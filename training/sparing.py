"""Spares a run's process work that libraries do each time they are imported: its answer is known from the last time."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from training.remembering import records_of_packages, remembered, state_of_file, state_of_files

EXPORTS = "define_import_structure"  # in Transformers


@contextmanager
def spared() -> Iterator[None]:
    """Import a training's libraries in this block: what only depends on installed files is remembered."""
    with packages_remembered(), frames_without_source(), changed("transformers.utils.import_utils", keep_exports):
        yield


@contextmanager
def packages_remembered() -> Iterator[None]:
    """Have `packages_distributions` remember its answer, which TRL asks for. It reads the records of all packages, and
    looks for most of their files."""
    list_now = importlib.metadata.packages_distributions

    def kept() -> Mapping[str, list[str]]:
        found: Mapping[str, list[str]] = remembered(
            "packages_distributions", records_of_packages(), lambda: dict(list_now())
        )
        return found

    importlib.metadata.packages_distributions = kept
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = list_now


@contextmanager
def frames_without_source() -> Iterator[None]:
    """Have `inspect.getframeinfo` look for no source, unless it is told to. Torch asks it for file and line of each
    operator that it registers, and to find the source it goes through all modules each time."""
    look = inspect.getframeinfo
    inspect.getframeinfo = lambda frame, context=0: look(frame, context)
    try:
        yield
    finally:
        inspect.getframeinfo = look


def keep_exports(module: ModuleType) -> None:
    """Remember what each folder of Transformers exports, for which it reads its 2500 files: for itself, and again for
    its package `models`."""
    find = getattr(module, EXPORTS, None)
    if find is None:
        return

    @functools.wraps(find)
    def kept(place: Any, *more: Any, **named: Any) -> Any:
        folder = str(place) if os.path.isdir(place) else os.path.dirname(place)
        asked = f"{EXPORTS} {place} {more} {named}"
        state = [state_of_file(str(module.__file__)), state_of_files(folder)]
        return remembered(asked, state, lambda: find(place, *more, **named))

    setattr(module, EXPORTS, kept)


@contextmanager
def changed(name: str, change: Callable[[ModuleType], None]) -> Iterator[None]:
    """Have a module that is imported in this block changed before whoever imports it goes on."""
    finder = _Changing(name, change)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Changing(MetaPathFinder):
    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name, self._change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path) if fullname == self._name else None
        if found is None or found.loader is None:
            return None
        execute = found.loader.exec_module

        def execute_and_change(module: ModuleType) -> Any:
            execute(module)
            self._change(module)

        found.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return found
