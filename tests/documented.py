"""The commands that the documentation shows: where they stand, and whether they can be what they say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import click
import yaml
from workplace import ROOT

FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(canary [^`]+)`")
PROGRAMS = (
    "canary",
    "mlflow",
    "python",
    "make",
    "pip",
    "pytest",
    "lm_eval",
    "docker",
    "srun",
    "sbatch",
    "jupyter",
    "uv",
    "git",
)
PLACEHOLDER = re.compile(r"[A-Z_]{2,}|…|[|\[{<$]")
HYDRA = ("canary run", "canary plan", "python -m training")
"""Commands whose other words are Hydra's overrides."""


READ = ("canary report", "canary diff", "canary audit log", "canary audit blame")
"""What only reads: run by test_tutorial.py in the store that the tutorial made."""

EXAMPLES = {
    "canary ab": "two revisions: test_revisions.py",
    "canary accept-facts": "test_facts.py",
    "canary audit verify": "another place, another key: test_witness.py",
    "canary bisect": "a history of commits: test_bisect.py",
    "canary compare": "imported files: test_files.py",
    "canary db": "PostgreSQL: test_guard_server.py",
    "canary evals": "results of benchmarks: test_evals.py, test_evals_of_versions.py",
    "canary gate": "test_gatekeeper.py",
    "canary import": "logs of others: test_files.py",
    "canary judge": "logs of others: test_files.py",
    "canary override": "test_guard_people.py",
    "canary policy": "test_guard_commands.py",
    "canary profile": "test_launch.py",
    "canary register": "test_own_scripts.py",
    "canary replay": "logs of others: test_replay.py",
    "canary run": "its settings are composed below; test_launch.py",
    "canary session": "test_session_run.py",
    "canary ui": "a server: test_pages_browser.py",
    "canary upgrade": "packages from an index: test_upgrade.py",
    "canary verify-weights": "test_verify_weights.py",
    "canary watch": "a training that goes on: test_watch_command.py",
    "docker": "needs Docker: test_server_s3.py reads the files",
    "jupyter": "test_notebook.py runs the notebook",
    "lm_eval": "another project's; results that it wrote: test_evals.py",
    "make": "test and smoke are what is run; the targets are there",
    "mlflow": "test_mlproject.py, test_guarded_journey.py",
    "pip": "an index: test_wheel.py installs the wheel",
    "pytest": "itself",
    "python": "trains or measures for minutes: test_launch.py, test_benchmarks.py",
    "srun": "needs Slurm: test_sweep.py has a stand-in",
}
"""Why a command of a page is not run as it stands there, and the test that runs its like."""


@dataclass(frozen=True)
class Shown:
    page: str
    text: str
    alone: bool
    """In a block of its own: whole, to be copied. Otherwise within a sentence, where a part of it may stand."""

    @property
    def words(self) -> list[str]:
        words = shlex.split(self.text)
        return words[next(at for at, word in enumerate(words) if not re.fullmatch(r"\w+=\S*", word)) :]


def shown() -> Iterator[Shown]:
    """Every command of every page, but for the one that is made from the commands themselves."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if path.name == "commands.md":
            continue
        page, text = path.relative_to(ROOT).as_posix(), path.read_text()
        for language, block in FENCED.findall(text):
            if language in ("", "sh", "bash"):
                for line in block.replace("\\\n", " ").splitlines():
                    words = re.split(r"\s+# |\s{2,}", line.strip())[0]
                    if re.match(rf"(\w+=\S* )*({'|'.join(PROGRAMS)}) ", words):
                        yield Shown(page, words, alone=True)
        for words in INLINE.findall(FENCED.sub("", text)):
            yield Shown(page, " ".join(words.split()), alone=False)


def fault(one: Shown) -> str:
    """What is wrong with it; empty if nothing is, or if nobody here can tell."""
    words = one.words
    if words[0] == "canary":
        return fault_of_canary(words[1:], one.alone)
    if words[0] == "make":
        return "" if words[1] in targets() else f"no target {words[1]}"
    if words[:2] == ["mlflow", "run"]:
        asked = [word.partition("=")[0] for before, word in pairwise(words) if before == "-P"]
        return "".join(f"no parameter {name}" for name in asked if name not in parameters())
    if words[0] == "pytest" or (words[0] == "python" and words[1].startswith(("benchmarks/", "docs/"))):
        return fault_of_script([word for word in words[1:] if not PLACEHOLDER.search(word)])
    return ""


def fault_of_canary(words: list[str], alone: bool) -> str:
    from canary_mlflow.cli import canary

    command: click.Command = canary
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if PLACEHOLDER.match(words[0]):
            return ""
        found = command.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context, **command.context_settings)
    try:
        given, _, _ = command.make_parser(context).parse_args(list(words))
        for param in command.params:
            value = given.get(param.name or "")
            if isinstance(param.type, click.Choice) and isinstance(value, str) and not PLACEHOLDER.search(value):
                param.type.convert(value, param, context)
            wanted = isinstance(param, click.Argument) and param.required and param.nargs == 1
            if alone and wanted and not isinstance(value, str):
                return f"{param.name} is missing"
    except click.BadOptionUsage as error:
        return error.message if alone or isinstance(error, click.NoSuchOption) else ""
    except click.UsageError as error:
        return error.message
    return ""


def fault_of_script(words: list[str]) -> str:
    """Files that are not there, and options that the script does not know."""
    files = [ROOT / word.partition("::")[0] for word in words if word.endswith(".py")]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        return f"no {missing[0]}"
    known = "".join(file.read_text() for file in files)
    options = [word for word in words if word.startswith("--") and "benchmarks" in words[0]]
    return "".join(f"no option {option}" for option in options if option not in known)


@cache
def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@cache
def parameters() -> set[str]:
    points = yaml.safe_load((ROOT / "MLproject").read_text())["entry_points"].values()
    return {name for point in points for name in point["parameters"]}


def overrides(one: Shown) -> list[str]:
    """Hydra's words of a command that trains here; none for the others."""
    for start in HYDRA:
        if f"{one.text} ".startswith(f"{start} "):
            words = [
                word for word in shlex.split(one.text)[len(start.split()) :] if "=" in word and not word.startswith("-")
            ]
            return [word for word in words if not PLACEHOLDER.search(word) and "launcher" not in one.text]
    return []
