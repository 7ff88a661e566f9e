"""The files that a study can become: one line each, and the option of `canary report` that asks for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.errors import CannotWrite

if TYPE_CHECKING:
    from canary_mlflow.reports.study import Study

# Nothing heavy is imported here: `canary --help` reads this table.


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of a report. `module`: in canary_mlflow.reports, imported on demand. `folder`: it writes several
    files."""

    option: str
    module: str
    function: str
    help: str
    folder: bool = False


FORMATS = (
    Format(
        option="html",
        module="html",
        function="render",
        help="One page, no network needed: verdict, curves, evidence.",
    ),
    Format(
        option="md", module="markdown", function="render_study", help="Markdown for a pull request, details folded."
    ),
    Format(option="png", module="pictures", function="pictures", help="One picture per chart, into DIR.", folder=True),
    Format(option="json", module="study", function="study_json", help="Everything in full precision; - for stdout."),
    Format(option="junit", module="junit", function="render", help="JUnit XML, one case per check."),
)


def made(wanted: Format, study: Study) -> list[tuple[str, bytes]]:
    """Make the files of a format: (file name inside the folder, or empty; content)."""
    from importlib import import_module

    make: Callable[[Study], object] = getattr(import_module(f"canary_mlflow.reports.{wanted.module}"), wanted.function)
    found = make(study)
    if wanted.folder:
        return list(found)  # type: ignore[call-overload, no-any-return]  # what the table says of it
    return [("", str(found).encode("utf-8", errors="replace"))]


def write(files: list[tuple[str, bytes]], place: Path) -> None:
    """Write what was made; each file appears whole or not at all. Raises CannotWrite."""
    for name, content in files:
        path = place / name if name else place
        try:
            write_whole(path, content)
        except OSError as error:
            raise CannotWrite(
                f"{path}: {error.strerror or type(error).__name__}; expected a place that can be written; name another"
            ) from error


def write_whole(path: Path, content: bytes) -> None:
    """Write through a uniquely named file beside it, so that two writers do not collide. A link stays a link; so does a
    device or a pipe, such as /dev/stdout, which root could otherwise replace by a file."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{uuid.uuid4().hex}.part")  # not the name's own: with .part it may be too long
    try:
        half.write_bytes(content)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
