"""Loaded as a probe's `sitecustomize`: gives unset arguments their old default, to see whether that explains a change.

CANARY_OLD_DEFAULTS is a JSON object, argument → its old value. It applies whenever a TrainingArguments is made, before
the class resolves what it was not given. An argument given at its class's default counts as unset, because
command-line parsers pass all arguments.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODULE = "transformers.training_args"


def install(wanted: dict[str, Any]) -> None:
    """Wait for the module with the arguments."""
    sys.meta_path.insert(0, Finder(wanted))


class Finder(MetaPathFinder):
    """Finds the one module, and changes it when it is loaded."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec of the module, with a loader that changes it; None of any other."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        return None if spec is None or spec.loader is None else changed(spec, self.wanted)


def changed(spec: ModuleSpec, wanted: dict[str, Any]) -> ModuleSpec:
    """The spec with a loader whose module gives the old defaults."""
    loader = spec.loader
    assert loader is not None
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        give(module.TrainingArguments, wanted)

    loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def give(arguments: Any, wanted: dict[str, Any]) -> None:
    """Make the class, and every subclass, use the old defaults for arguments that it is not given."""
    met: set[type] = set()

    def new(cls: Any, *values: Any, **named: Any) -> Any:
        if cls not in met:  # its own __init__, which a dataclass gets after it is made
            met.add(cls)
            cls.__init__ = with_old(cls, cls.__init__, wanted)
        return object.__new__(cls)

    arguments.__new__ = staticmethod(new)


def with_old(cls: Any, init: Any, wanted: dict[str, Any]) -> Any:
    """The class's __init__ with the old defaults filled in."""
    usual = {one.name: None if one.default is MISSING else one.default for one in fields(cls) if one.init}

    def old(self: Any, *values: Any, **named: Any) -> None:
        placed = list(usual)[: len(values)]
        for name, value in wanted.items():
            if name in usual and name not in placed and named.get(name, usual[name]) == usual[name]:
                named[name] = value
        init(self, *values, **named)

    return old


if os.environ.get("CANARY_OLD_DEFAULTS") and __name__ == "sitecustomize":
    install(json.loads(os.environ["CANARY_OLD_DEFAULTS"]))
