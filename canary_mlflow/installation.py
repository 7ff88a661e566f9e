"""Whether this Python, its packages and the plugin's entry points are what the project requires; each thing that was
looked at on this machine, and what to do about it, is a Finding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import UsageError
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.interpreter import TRAINING_STACK, lacking
from canary_mlflow.policies import conf_dir

if TYPE_CHECKING:
    from packaging.requirements import Requirement


class Level(StrEnum):
    """How bad it is: FAIL keeps something from working, WARN may."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was looked at, what was found, and what to do (empty when all is well)."""

    name: str
    level: Level
    found: str
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def line(finding: Finding) -> tuple[str, dict[str, Any]]:
    """A finding as one line of text, and its style."""
    advice = f"; {finding.advice}" if finding.advice else ""
    colour = {Level.OK: None, Level.WARN: "yellow", Level.FAIL: "red"}[finding.level]
    return f"{finding.level:<4}  {finding.name:<9}  {finding.found}{advice}", {"fg": colour}


DISTRIBUTION = "canary-mlflow"
PYTHON_FROM = (3, 11)
SHOWN = 5


def require_training_stack() -> None:
    """Raise UsageError unless the [train] extra is there; looks without importing."""
    if missing := lacking(TRAINING_STACK):
        raise UsageError(
            f"training stack: {', '.join(missing)} not installed; expected the [train] extra; "
            "pip install 'canary-mlflow[train]'"
        )


def outside_ranges() -> str:
    """The installed packages whose release the distribution does not allow, each with its range; "" without any."""
    try:
        found = [unmet(one) for one in declared() if applies(one, "train") and is_there(one)]
    except metadata.PackageNotFoundError:
        return ""  # run from a checkout that is not installed: doctor's finding
    return "; ".join(filter(None, found))


def python() -> Finding:
    """The interpreter's version."""
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info[:2] >= PYTHON_FROM:
        return Finding(name="python", level=Level.OK, found=found)
    expected = f"Python {'.'.join(map(str, PYTHON_FROM))} or later is needed; make a virtual environment with one"
    return Finding(name="python", level=Level.WARN, found=found, advice=expected)


def packages() -> Iterator[Finding]:
    """What the distribution requires, core and [train], against what is installed."""
    try:
        asked = declared()
    except metadata.PackageNotFoundError:
        yield Finding(
            name="packages",
            level=Level.WARN,
            found=f"{DISTRIBUTION} is not installed in this Python, so MLflow does not see the plugin",
            advice="in the project's folder: pip install -e .",
        )
        return
    core = [one for one in asked if applies(one, "")]
    train = [one for one in asked if applies(one, "train") and not applies(one, "")]
    yield requirements("packages", core, Level.FAIL, f"pip install {DISTRIBUTION}")
    yield requirements("training", train, Level.WARN, f"`canary run` needs it: pip install '{DISTRIBUTION}[train]'")


def declared() -> list[Requirement]:
    """What the distribution requires, of all extras. Raises PackageNotFoundError."""
    from packaging.requirements import Requirement

    return [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]


def applies(requirement: Requirement, extra: str) -> bool:
    """Whether a requirement holds here when `extra` is asked for."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def requirements(name: str, asked: list[Requirement], level: Level, advice: str) -> Finding:
    """One finding for a group of requirements."""
    problems = [problem for one in asked if (problem := unmet(one))]
    if problems:
        return Finding(name=name, level=level, found="; ".join(problems), advice=advice)
    versions = [f"{one.name} {metadata.version(one.name)}" for one in asked]
    return Finding(name=name, level=Level.OK, found=", ".join(versions))


def is_there(requirement: Requirement) -> bool:
    """Whether some release of the package is installed."""
    return any(True for _ in metadata.distributions(name=requirement.name))


def unmet(requirement: Requirement) -> str:
    """`trl missing` or `trl 1.2 found, <2,>=1.12 expected`; empty when it is met."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} missing"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} {version} found, {requirement.specifier} expected"


def plugin() -> Iterator[Finding]:
    """The entry points that MLflow reads. They are loaded here, as MLflow only warns about one that fails to load."""
    try:
        entries = metadata.distribution(DISTRIBUTION).entry_points
    except metadata.PackageNotFoundError:
        return  # reported by packages()
    for entry in entries:
        if not entry.group.startswith("mlflow."):
            continue
        try:
            entry.load()
        except (ImportError, AttributeError) as error:
            yield Finding(
                name="plugin",
                level=Level.FAIL,
                found=f"{entry.group}: {entry.value} does not load ({error})",
                advice=f"install it again: pip install --force-reinstall --no-deps {DISTRIBUTION}",
            )
        else:
            yield Finding(name="plugin", level=Level.OK, found=f"{entry.group}: {entry.name}")


def pins(file: Path | None = None) -> Iterator[Finding]:
    """In a checkout: installed packages whose version is not the one in requirements.txt, which lists versions that are
    known to work together."""
    file = file or conf_dir().parent / "requirements.txt"
    if not file.is_file():
        return
    asked = [text.partition("==") for text in file.read_text().splitlines() if "==" in text and text[0] != "#"]
    other = []
    for name, _, pin in asked:
        try:
            found = metadata.version(name).partition("+")[0]  # without the local part: +cpu, +cu130
        except metadata.PackageNotFoundError:
            continue  # packages() reports a needed package that is missing
        if found != pin.strip():
            other.append(f"{name} {found} (pin {pin.strip()})")
    if not other:
        yield Finding(name="pins", level=Level.OK, found=f"every installed package has its version of {file.name}")
        return
    yield Finding(name="pins", level=Level.WARN, found=listed(other, SHOWN), advice=f"pip install -r {file}")
