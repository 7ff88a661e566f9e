"""A repository's commits, and checkouts of them that the repository does not know of: no worktree is left in it, and
nothing of the user's tree is touched, however the process that made them ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from canary_mlflow.errors import UsageError, one_line
from canary_mlflow.launching.sources import PATIENCE

FORMAT = "%H%x00%an <%ae>%x00%as%x00%s"
LOCKS = ("requirements.txt", "uv.lock", "pylock.toml", "poetry.lock", "environment.yml", "conda.yaml")
"""Files that say which packages a commit wants."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit as git has it."""

    sha: str
    author: str
    date: str
    subject: str

    def __str__(self) -> str:
        return f"{self.sha[:10]} {self.subject}"


@dataclass(frozen=True, kw_only=True)
class Repository:
    """The one around the working folder. `inside`: that folder, seen from the repository's root."""

    root: Path
    inside: str
    private: Path  # git's own folder, which all its worktrees share

    @classmethod
    def here(cls) -> Repository:
        """Raises UsageError outside of one."""
        found = git(Path.cwd(), "rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir")
        root, private = map(Path, found.splitlines())
        return cls(root=root, inside=str(Path.cwd().resolve().relative_to(root.resolve())), private=private)

    def commits(self, good: str, bad: str, path: str) -> tuple[Commit, list[Commit]]:
        """The good one, and those after it up to the bad one, along first parents; with a `path`, those alone that
        change it. Raises UsageError where there are none."""
        for name in (good, bad):
            if name.startswith("-"):
                raise UsageError(f"found {name!r}; expected a commit, branch or tag")
        shas = [git(self.root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", what=name)
                for name in (good, bad)]  # fmt: skip
        if shas[0] == shas[1] or git(self.root, "merge-base", *shas, what=f"{good} {bad}") != shas[0]:
            raise UsageError(f"GOOD {good} is no commit before BAD {bad}; expected an ancestor of it")
        (start,) = _told(git(self.root, "log", "-1", f"--format={FORMAT}", shas[0]))
        only = ["--", path] if path else []
        between = ["log", "--first-parent", "--reverse", f"--format={FORMAT}", f"{shas[0]}..{shas[1]}", *only]
        found = _told(git(Path.cwd(), *between))
        if not found:
            raise UsageError(f"--path {path}: no commit between {good} and {bad} changes it; expected one that does")
        return start, found

    def notes(self, good: Commit, bad: Commit) -> tuple[str, ...]:
        """What the trainings between two commits do not follow."""
        changed = git(self.root, "diff", "--name-only", good.sha, bad.sha, "--", *LOCKS, ".gitmodules").splitlines()
        if not changed:
            return ()
        return (f"{', '.join(changed)} changed: each commit is trained with the packages at hand and no submodules",)

    @contextmanager
    def searching(self, work: Path) -> Iterator[None]:
        """Nobody else searches in this folder. Raises UsageError if somebody does."""
        work.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(work / "lock", timeout=0):
                yield
        except Timeout as error:
            raise UsageError(f"another canary bisect is at work in {work}; wait, or give --work DIR") from error

    def check_out(self, commit: Commit, folder: Path) -> Path:
        """The commit's files in this folder, and nothing else; the user's working folder within it. It is a repository
        of its own, which reads this one's objects. Raises UsageError if the commit has no such folder."""
        if not (folder / ".git").is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            git(folder, "init", "--quiet", "--template=")
        alternates = folder / ".git" / "objects" / "info" / "alternates"
        alternates.parent.mkdir(exist_ok=True)
        alternates.write_text(f"{self.private / 'objects'}\n")
        (folder / ".git" / "index.lock").unlink(missing_ok=True)  # of one that was killed; nobody else is here
        git(folder, "checkout", "--quiet", "--force", "--detach", commit.sha)
        git(folder, "clean", "-ffdxq")
        if not (place := folder / self.inside).is_dir():
            raise UsageError(f"commit {commit}: it has no folder {self.inside}")
        return place


def git(folder: Path, *words: str, what: str = "") -> str:
    """What git says. Raises UsageError."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook around us
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *words], capture_output=True, text=True,
            timeout=PATIENCE, check=False, env=own,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"git {words[0]}: {one_line(error)}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())[:200] or f"it knows no {what}"
        raise UsageError(f"git {words[0]}: {said}; expected commits of the repository in the working folder")
    return done.stdout.strip()


def _told(log: str) -> list[Commit]:
    return [
        Commit(sha=sha, author=author, date=date, subject=subject)
        for sha, author, date, subject in (line.split("\0") for line in log.splitlines())
    ]
