"""What scores answers besides rules on tokens: a model's files, from a folder or the hub, and a user's own function.

The function is a Python function named by its import path: found, identified by its source, loaded and tried. It is
called as TRL calls one, with those arguments for which it has parameters: `prompts` and `completions` (texts, or lists
of messages if the data are chats), `completion_ids`, and every other column of the data under its name. Without torch.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from canary_mlflow.training.errors import SetupError, first_line
from canary_mlflow.training.hub import MODEL_PATTERNS, Repository, locate, missing_model_files
from canary_mlflow.training.models import fingerprint
from canary_mlflow.training.reward_config import RewardConfig


def reward_folder(path: str) -> Path:
    """The folder with the classifier's files; files missing from the cache are fetched from the hub. Raises
    SetupError."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
            raise SetupError(f"algo.reward.path={path} holds an adapter only; expected a whole model; merge it first")
        if lacks := missing_model_files(folder):
            raise SetupError(
                f"algo.reward.path={path} lacks {', '.join(lacks)}; expected a sequence classifier's folder"
            )
        return folder
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise SetupError(f"algo.reward.path={path} is not a folder; expected one with a sequence classifier")
    return locate(
        Repository(
            name=path,
            kind="model",
            asked_by="algo.reward.path",
            probe="config.json",
            patterns=MODEL_PATTERNS,
            missing=missing_model_files,
        )
    )


def reward_revision(path: str) -> str:
    """What identifies the reward model on any machine: the hub's commit, or a digest of the local files."""
    folder = reward_folder(path)
    return fingerprint(folder) if Path(path).expanduser().is_dir() else folder.name


def revision_of(reward: RewardConfig) -> str:
    """What identifies a reward: the digest of a model's files or a function's source; "" for a rule on tokens."""
    if reward.kind == "model":
        return reward_revision(reward.path or "")
    return source_digest(reward.path or "") if reward.kind == "function" else ""


TRIED = 4  # rows of the data on which a function is tried
STAND_IN = "An answer."  # if the data hold none


def source_file(path: str) -> Path:
    """The file of the module that `pkg.module:name` names, found without running any of it. Raises SetupError."""
    module, colon, name = path.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise SetupError(f"reward path {path!r} is no import path; expected one, such as my_package.rewards:polite")
    importlib.invalidate_caches()
    places, found = [str(Path.cwd()), *sys.path], None
    for depth, part in enumerate(module.split("."), start=1):
        whole = ".".join(module.split(".")[:depth])
        found = PathFinder.find_spec(whole, places)
        if found is None:
            raise SetupError(
                f"reward function {path}: there is no module {whole!r}, neither in this folder nor installed; expected "
                f"one that `python -c 'import {module}'` finds; PYTHONPATH names further folders"
            )
        places = list(found.submodule_search_locations or ())
        last = part
    origin = Path(found.origin) if found and found.has_location and found.origin else None
    if origin is None or origin.suffix != ".py":
        raise SetupError(
            f"reward function {path}: {last!r} has no Python source; expected a module of Python's, which has one"
        )
    return origin


def source_digest(path: str) -> str:
    """The digest that identifies the reward: of its module's whole source, as a function depends on its helpers."""
    return hashlib.sha256(source_file(path).read_bytes()).hexdigest()


def load_function(path: str) -> Callable[..., list[float]]:
    """The function, wrapped so that each call must return as many finite numbers as answers. Raises SetupError in one
    line."""
    source = source_file(path)
    module, _, name = path.partition(":")
    try:
        with _here_first():
            found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it is imported
        raise SetupError(f"reward function {path}: {module} cannot be imported: {_said(error)}") from error
    if not source.samefile(found.__file__ or os.devnull):
        raise SetupError(
            f"reward function {path}: {found.__file__} has the name of {source}, and is in use; expected another name"
        )
    function = getattr(found, name, None)
    if function is None:
        raise SetupError(f"reward function {path}: {module} has no {name!r}; expected the name of a function in it")
    if not callable(function) or inspect.isclass(function) or inspect.iscoroutinefunction(function):
        kind = "an async function" if inspect.iscoroutinefunction(function) else f"of type {type(function).__name__}"
        raise SetupError(f"reward function {path} is {kind}; expected a plain function")
    parameters = inspect.signature(function).parameters.values()
    if refused := [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]:
        raise SetupError(f"reward function {path} takes {refused[0]} by position alone; expected parameters by name")
    taken = {one.name for one in parameters if one.kind is not one.VAR_POSITIONAL}
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    needed = [one.name for one in parameters if one.default is one.empty and one.kind in NAMED]

    def score(prompts: Sequence[Any], completions: Sequence[Any], **columns: Sequence[Any]) -> list[float]:
        given: dict[str, Any] = {"prompts": list(prompts), "completions": list(completions), **columns}
        if absent := [one for one in needed if one not in given]:
            raise SetupError(f"reward function {path} asks for {absent[0]}; expected some of {', '.join(given)}")
        found = function(**{key: value for key, value in given.items() if takes_all or key in taken})
        return _checked(found, len(completions), path)

    score.__name__ = name
    return score


def try_function(path: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Call the function once, on the first rows of the data and their better answers. Raises SetupError in one line."""
    function, rows = load_function(path), list(rows)[:TRIED]
    prompts = [row["prompt"] for row in rows]
    answers = [row.get("chosen") or _stand_in(row["prompt"]) for row in rows]
    others = columns_of(rows)
    try:
        function(prompts=prompts, completions=answers, completion_ids=[[0]] * len(rows), **others)
    except SetupError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        columns = ", ".join(["prompts", "completions", "completion_ids", *others])
        raise SetupError(
            f"reward function {path} cannot score the first {len(rows)} rows of the data: {_said(error)}; "
            f"it is given {columns}"
        ) from error


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The rows' columns without the prompts, as they are passed to a function."""
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else {}) if name != "prompt"}


NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _stand_in(prompt: Any) -> Any:
    return STAND_IN if isinstance(prompt, str) else [{"role": "assistant", "content": STAND_IN}]


def _checked(found: Any, count: int, path: str) -> list[float]:
    try:
        scores = list(found)
    except TypeError:
        raise SetupError(
            f"reward function {path} returned a {type(found).__name__}; expected a list of {count} scores"
        ) from None
    if len(scores) != count:
        raise SetupError(
            f"reward function {path} returned {len(scores)} scores for {count} answers; expected one for each"
        )
    numbers = []
    for at, value in enumerate(scores, start=1):
        try:
            numbers.append(float(value))
        except (TypeError, ValueError):
            raise SetupError(f"reward function {path}: score {at} of {count} is {value!r}; expected a number") from None
        if not math.isfinite(numbers[-1]):
            raise SetupError(
                f"reward function {path}: score {at} of {count} is {numbers[-1]}; expected a finite number"
            )
    return numbers


@contextmanager
def _here_first() -> Iterator[None]:
    """Look for modules in the working folder first, as `python -m` does but an installed command does not; afterwards
    there too, but last, so that what a library imports later is no file of that folder."""
    here = str(Path.cwd())
    known = here in sys.path or "" in sys.path
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        if not known:
            sys.path.append(here)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
