"""As `sitecustomize` of a probe: gives arguments that nobody gave their old default, to see whether it explains.

CANARY_OLD_DEFAULTS is a JSON object, argument → its old value. It strikes where any TrainingArguments is made, before
the class settles what it was not given. An argument given at its class's default counts as not given: that is how
parsers of command lines pass them all.
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
    """Finds the one module, and has it changed when it is loaded."""

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
    """Have the class, and each that is made from it, take the old defaults for what it is not given."""
    met: set[type] = set()

    def new(cls: Any, *values: Any, **named: Any) -> Any:
        if cls not in met:  # its own __init__, which a dataclass gets after it is made
            met.add(cls)
            cls.__init__ = with_old(cls, cls.__init__, wanted)
        return object.__new__(cls)

    arguments.__new__ = staticmethod(new)


def with_old(cls: Any, init: Any, wanted: dict[str, Any]) -> Any:
    """Its __init__ with the old defaults given."""
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
