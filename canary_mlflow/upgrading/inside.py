"""Loaded as a probe's `sitecustomize`: what `canary upgrade` does inside the command that it tries. It records it, and
may give unset arguments their old defaults, to see whether that explains a change.

CANARY_OLD_DEFAULTS is a JSON object, argument → its old value. It applies whenever a TrainingArguments is made, before
the class resolves what it was not given. An argument given at its class's default counts as unset, because
command-line parsers pass all arguments.
"""

import json
import os
from dataclasses import MISSING, fields
from typing import Any

from canary_mlflow.upgrading.imports import Imports
from canary_mlflow.upgrading.recording import FOLDER, Recorder

OLD_DEFAULTS = "CANARY_OLD_DEFAULTS"


def begin(folder: str, old_defaults: str) -> None:
    """Python starts."""
    imports = Imports()
    imports.watch()
    if old_defaults:
        wanted = json.loads(old_defaults)
        imports.after("transformers.training_args", lambda module: give(module.TrainingArguments, wanted))
    Recorder(folder, imports).watch()
    imports.after("datasets", lambda module: module.disable_caching())  # beside a saved dataset both sides would cache


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


if __name__ == "sitecustomize" and FOLDER in os.environ:
    begin(os.environ[FOLDER], os.environ.get(OLD_DEFAULTS, ""))
