"""Sets of packages as name → version: the present ones, the requested ones, and what uv resolves them to."""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName

from canary_mlflow.errors import CanaryError, UsageError, one_line
from canary_mlflow.files.source import read_bytes
from canary_mlflow.upgrading.uv import NO_SOLUTION, UVFailed, uv

Pins = Mapping[str, str]
NOT_MOVED = frozenset({"canary-mlflow", "pip", "setuptools", "wheel", "uv"})
"""Packages that build or judge, and are not part of a training."""

ELSEWHERE = ("-r", "--requirement", "-c", "--constraint")
"""How a line of requirements.txt begins that names another file."""
FOLDER = "file:"
"""How what stands for the version of a package begins that was installed from a folder: its own URL."""
OF_FOLDER = ("virtual", "editable", "directory")
"""What uv.lock calls the source of the project itself, and of others beside it; no index has them."""
FILES = (".txt", ".in", ".toml", ".lock")
"""How the name of a file with packages ends."""
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*===?\s*([A-Za-z0-9][A-Za-z0-9.+!_-]*)$")


class Unresolvable(CanaryError):
    """A set of packages that contradict each other: it cannot be tested."""


@dataclass(frozen=True)
class Change:
    """One package and its two versions; '' where a side lacks it."""

    name: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.name} {self.before or 'absent'} → {self.now or 'absent'}"


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """All packages of this Python; of two with one name, the first on the path, which is imported."""
    return {normal(one.metadata["Name"]): _folder_of(one) or one.version
            for one in reversed(list(distributions())) if one.metadata["Name"]}  # fmt: skip


def here() -> dict[str, str]:
    """The packages of this Python that an upgrade moves."""
    return {name: version for name, version in sorted(installed().items()) if name not in NOT_MOVED}


def _folder_of(one: Distribution) -> str:
    """The URL of the folder that it was installed from, such as one's own project; '' if it was not."""
    try:
        told = json.loads(one.read_text("direct_url.json") or "{}")
    except ValueError:
        return ""
    return str(told.get("url", "")) if isinstance(told, dict) and "dir_info" in told else ""


def read(words: Sequence[str]) -> dict[str, str]:
    """What `--to` asks for: PKG==VER, or a requirements.txt, pylock.toml or uv.lock, of which what is for another
    Python or machine does not count. Raises UsageError in one line."""
    found: dict[str, str] = {}
    for word in words:
        pin = _PIN.match(word.strip())
        new = {normal(pin[1]): pin[2]} if pin else _file(Path(word))
        if twice := next((name for name in new if found.get(name, new[name]) != new[name]), ""):
            raise UsageError(f"{twice}: found =={found[twice]} and =={new[twice]}; expected one version of it")
        found |= new
    own = here()
    return {name: _build(version, own.get(name, "")) for name, version in found.items() if name not in NOT_MOVED}


def _build(version: str, installed: str) -> str:
    """The version in the build that is installed, such as +cpu: pip keeps it for such a pin, and another build of torch
    brings gigabytes of CUDA along."""
    return installed if installed.partition("+")[0] == version else version


def moved(before: Pins, now: Pins) -> list[Change]:
    """The packages whose version differs between the two sets, those first that both have; build tags such as +cpu do
    not count."""
    names = sorted((before.keys() | now.keys()) - NOT_MOVED, key=lambda name: (name not in before.keys() & now, name))
    pairs = [Change(name, before.get(name, ""), now.get(name, "")) for name in names]
    return [one for one in pairs if one.before.partition("+")[0] != one.now.partition("+")[0]]


def lock(exact: Pins, names: Iterable[str], preferred: Pins) -> dict[str, str]:
    """A complete set that can be installed: `exact` unchanged, the other `names` at their preferred versions if
    possible. Packages of a folder stay what they are, whatever they ask for: no index has them. Raises Unresolvable,
    UsageError for a package or version that no index has, CanaryError."""
    own = {name: place for name, place in {**preferred, **exact}.items() if place.startswith(FOLDER)}
    exact, preferred = ({name: one for name, one in pins.items() if name not in own} for pins in (exact, preferred))
    wanted = [f"{name}=={version}" for name, version in sorted(exact.items())]
    wanted += sorted(set(names) - exact.keys() - own.keys())
    try:
        with tempfile.TemporaryDirectory(prefix="canary-lock-") as folder:
            return {**_locked(Path(folder), wanted, exact, preferred), **own}
    except OSError as error:
        raise CanaryError(
            f"temporary files: {one_line(error)}; expected a folder with room; TMPDIR says where"
        ) from error


def completed(listed: Pins) -> dict[str, str]:
    """The set with whatever its packages need and it does not name, as far as possible in the version of this Python: a
    requirements.txt may list only what a project asks for itself. Raises UsageError for one that contradicts itself:
    what it lacks cannot be told, and its trainings would fail for that."""
    here_too = {name: version for name, version in here().items() if not version.startswith(FOLDER)}
    try:
        return lock(listed, (), {**here_too, **listed})
    except Unresolvable as error:
        raise UsageError(f"--from: {error}; expected packages that can be installed together") from error


def _locked(folder: Path, wanted: Sequence[str], exact: Pins, preferred: Pins) -> dict[str, str]:
    asked, found = folder / "asked.in", folder / "locked.txt"
    asked.write_text("\n".join(wanted) + "\n")
    found.write_text("".join(f"{name}=={version}\n" for name, version in sorted({**preferred, **exact}.items())))
    try:
        uv("pip", "compile", str(asked), "--output-file", str(found), "--no-header", "--no-annotate", "--quiet")
    except UVFailed as error:
        raise _said(error, {**preferred, **exact}) from error
    return _pinned_in(found.read_text())


def _said(error: UVFailed, pins: Pins) -> CanaryError:
    text = " ".join(error.text.split())
    if "not found in the cache" in text or "network was disabled" in text:
        return CanaryError("uv is offline (UV_OFFLINE) and its cache lacks a package that is needed")
    absent = re.search(r"([\w.-]+) was not found in the (?:package registry|provided)", text)
    if absent and absent[1] in pins:
        return UsageError(f"{absent[1]}: no such package in the index; expected a name that pip install would take")
    lacking = re.search(r"there is no version of ([\w.-]+)==(\S+)", text)
    if lacking and pins.get(lacking[1]) == lacking[2].rstrip(",."):
        return UsageError(f"{lacking[1]}=={lacking[2].rstrip(',.')}: no such version in the index; "
                          "expected one that it has")  # fmt: skip
    if NO_SOLUTION in text:
        why = text.rpartition(NO_SOLUTION)[2].strip(" .:╰─▶").removeprefix("cause: ")[:300]
        return Unresolvable(f"these packages contradict each other: {why}")
    return error


def _file(path: Path) -> dict[str, str]:
    if not path.is_file():
        if path.exists() or os.sep in str(path) or path.suffix in FILES:
            found = "not a file" if path.exists() else "no such file"
            raise UsageError(f"{path}: {found}; expected requirements.txt, pylock.toml or uv.lock")
        raise UsageError(f"{path}: found neither a package with ==VERSION nor a file; expected one of them")
    try:
        text = read_bytes(path).decode("utf-8-sig").replace("\r\n", "\n")
        if path.suffix == ".toml" or path.name == "uv.lock":
            return _lock_file(path, tomllib.loads(text))
        return _requirements(path, text)
    except (OSError, ValueError) as error:
        said = one_line(error)
        raise UsageError(
            f"{path}: cannot be read ({said}); expected requirements.txt, pylock.toml or uv.lock"
        ) from error


def _lock_file(path: Path, body: Mapping[str, object]) -> dict[str, str]:
    """pylock.toml (PEP 751) calls its list `packages`, uv.lock `package`; both name versions alike."""
    rows = body.get("packages", body.get("package"))
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{path}: found no packages in it; expected pylock.toml or uv.lock")
    return {normal(str(row["name"])): str(row["version"]) for row in rows if _is_for_this(row)}


def _is_for_this(row: Mapping[str, object]) -> bool:
    """Whether a row of a lock file is a release that this Python on this machine takes from an index."""
    if not {"name", "version"} <= row.keys():
        return False
    source, markers = row.get("source"), row.get("resolution-markers") or row.get("marker", "")
    of_folder = "directory" in row or (isinstance(source, dict) and not source.keys().isdisjoint(OF_FOLDER))
    return not of_folder and any(map(_holds, map(str, markers if isinstance(markers, list) else [markers])))


def _holds(marker: str) -> bool:
    """Whether `sys_platform == 'win32'` and the like is true here; what cannot be known is."""
    try:
        return not marker.strip() or Marker(marker).evaluate()
    except (InvalidMarker, UndefinedEnvironmentName):
        return True


def _requirements(path: Path, text: str) -> dict[str, str]:
    lines = _lines_for_this(text)
    if other := next((line for line in lines if line.startswith(ELSEWHERE)), ""):
        raise UsageError(f"{path}: found {other!r}; expected all packages in one file, as pip freeze writes")
    found = _pinned_in(text)
    if loose := [line for line in lines if not line.startswith("-") and not _PIN.match(line)]:
        raise UsageError(f"{path}: found {loose[0]!r}; expected each package with ==VERSION, as pip freeze writes")
    if twice := next((line for line in lines if (pin := _PIN.match(line)) and found[normal(pin[1])] != pin[2]), ""):
        raise UsageError(f"{path}: found {twice!r} and another version of it; expected one, as pip freeze writes")
    if not found:
        raise UsageError(f"{path}: found no packages in it; expected lines such as trl==1.16.0")
    return found


def _pinned_in(text: str) -> dict[str, str]:
    pins = map(_PIN.match, _lines_for_this(text))
    return {normal(pin[1]): pin[2] for pin in pins if pin}


def _lines_for_this(text: str) -> list[str]:
    """The lines of a requirements.txt that this Python on this machine takes, without comments, hashes and markers."""
    lines = (line.partition("#")[0].partition(" --hash")[0] for line in text.replace("\\\n", " ").splitlines())
    parts = [line.partition(";") for line in lines]
    return [what.strip() for what, _, marker in parts if what.strip() and _holds(marker)]
