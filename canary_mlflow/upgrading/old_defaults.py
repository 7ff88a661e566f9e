"""As `sitecustomize` of a probe: sets arguments that nobody gave back to an old default, to see whether it explains.

CANARY_OLD_DEFAULTS is a JSON object, argument → its old value as text. It strikes in TrainingArguments.__post_init__,
where all trainers' configurations meet, on arguments that are at their class's default.
"""

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODULE = "transformers.training_args"


def install(wanted: dict[str, str]) -> None:
    """Wait for the module with the arguments."""
    sys.meta_path.insert(0, Finder(wanted))


class Finder(MetaPathFinder):
    """Finds the one module, and has it changed when it is loaded."""

    def __init__(self, wanted: dict[str, str]) -> None:
        self.wanted = wanted

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec of the module, with a loader that changes it; None of any other."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        return None if spec is None or spec.loader is None else changed(spec, self.wanted)


def changed(spec: ModuleSpec, wanted: dict[str, str]) -> ModuleSpec:
    """The spec with a loader whose module sets the defaults back."""
    loader = spec.loader
    assert loader is not None
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        set_back(module.TrainingArguments, wanted)

    loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def set_back(arguments: Any, wanted: dict[str, str]) -> None:
    """Have the class's __post_init__ begin with the old defaults."""
    before = arguments.__post_init__

    def post_init(self: Any) -> None:
        for name, text in wanted.items():
            if hasattr(self, name):
                setattr(self, name, value_of(text, getattr(self, name)))
        before(self)

    arguments.__post_init__ = post_init


def value_of(text: str, now: Any) -> Any:
    """A value as canary_mlflow.tracking.fact_tags writes it; absent is the default that was: no, or nothing."""
    if text == "absent":
        return False if isinstance(now, bool) else None
    try:
        return json.loads(text.replace("True", "true").replace("False", "false").replace("None", "null"))
    except ValueError:
        return text


if os.environ.get("CANARY_OLD_DEFAULTS") and __name__ == "sitecustomize":
    install(json.loads(os.environ["CANARY_OLD_DEFAULTS"]))
