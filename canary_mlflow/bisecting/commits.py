"""A repository's commits, and checkouts of them that the repository does not know of: no worktree is left in it, and
nothing of the user's tree is touched, however the process that made them ends."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from canary_mlflow.errors import UsageError, one_line
from canary_mlflow.launching.sources import PATIENCE

FORMAT = "--format=%H%x00%an <%ae>%x00%as%x00%s"
NOT_FOLLOWED = ("requirements.txt", "uv.lock", "pylock.toml", "poetry.lock", "conda.yaml", ".gitmodules")
"""Files that say which packages and submodules a commit wants."""


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
    """The one around the working folder. `inside`: that folder, seen from the repository's `root`. `private`: git's own
    folder, which all its worktrees share."""

    root: Path
    inside: str
    private: Path

    @classmethod
    def here(cls) -> Repository:
        """Raises UsageError outside of one."""
        found = git(Path.cwd(), "rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir")
        root, private = map(Path, found.splitlines())
        return cls(root=root, inside=str(Path.cwd().resolve().relative_to(root.resolve())), private=private)

    def commits(self, good: str, bad: str, path: str) -> tuple[Commit, list[Commit]]:
        """The good one, and those after it up to the bad one, along first parents; with a `path`, those alone that
        change it. Raises UsageError where there are none."""
        first, last = (git(self.root, "rev-parse", "--verify", "--end-of-options", f"{one}^{{commit}}")
                       for one in (good, bad))  # fmt: skip
        if first == last or git(self.root, "merge-base", first, last) != first:
            raise UsageError(f"GOOD {good} is no commit before BAD {bad}; expected an ancestor of it")
        between = ("--first-parent", "--reverse", f"{first}..{last}", *(("--", path) if path else ()))
        found = _told(git(Path.cwd(), "log", FORMAT, *between))
        if not found:
            raise UsageError(f"--path {path}: no commit between {good} and {bad} changes it; expected one that does")
        return _told(git(self.root, "log", "-1", FORMAT, first))[0], found

    def not_followed(self, good: Commit, bad: Commit) -> str:
        """What differs between two commits and their trainings do not follow."""
        return ", ".join(git(self.root, "diff", "--name-only", good.sha, bad.sha, "--", *NOT_FOLLOWED).splitlines())

    def check_out(self, commit: Commit, folder: Path) -> Path:
        """The commit's files in this folder, and nothing else; the user's working folder within it. It is a repository
        of its own, which reads this one's objects. Raises UsageError if the commit has no such folder."""
        if not (folder / ".git" / "HEAD").is_file():
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


def git(folder: Path, *words: str) -> str:
    """What git says. Raises UsageError."""
    command = ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *words]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook around us
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=own)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"git {words[0]}: {one_line(error)}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())[:200]
        raise UsageError(f"git {words[0]} {words[-1]}: {said}; expected commits of the repository here")
    return done.stdout.strip()


def _told(log: str) -> list[Commit]:
    parts = (line.split("\0") for line in log.splitlines())
    return [Commit(sha=sha, author=author, date=date, subject=subject) for sha, author, date, subject in parts]
