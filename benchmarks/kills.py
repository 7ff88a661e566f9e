"""Ends commands at random moments, and checks what they leave.

    python benchmarks/kills.py FOLDER [--kills 30] [--seed 0] [--write docs/measured/sessions.md]

A session, a sweep, `canary ab` and `canary gate --top-up` in turn, of the embedded SFT canary at its smallest, in a
clone of this checkout with a store of its own in FOLDER. Each command first runs to its end once, which says how long
it takes; then it is started again and ended at a random moment of that time: by SIGKILL, SIGTERM or SIGHUP to its own
process alone, or by Ctrl-C twice, as a terminal sends it. Then the next session or, every other time, `canary doctor
--fix` runs and must succeed. Afterwards nothing may read RUNNING; every version must be sealed and its session and runs
ended; no worktree, scratch folder or process may be left, and the ledger must verify.

FOLDER/kills.jsonl keeps a line per kill; kills in it are not done again. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODEL = "kills"
TINY = ["algo=sft", "train.max_steps=30", f"model_name={MODEL}"]
NEXT = ["-m", "training", *TINY, "repeats=1"]
CANARY = ["-m", "canary_mlflow.cli"]
WORKS = ("session", "sweep", "ab", "top-up")
WAYS = ("SIGKILL", "SIGTERM", "SIGHUP", "Ctrl-C twice")
GONE = 60.0  # seconds within which a dead process's children must end
TRACEBACK = "Traceback (most recent call last)"
MARK = "<!-- kills: {} -->"


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One command that was ended `after` so many of its `life` seconds, and what was wrong afterwards."""

    number: int
    work: str
    way: str
    after: float
    life: float
    sent: bool  # False: it had already ended by itself
    code: int
    followed: float  # seconds until the last of its processes was gone
    next_code: int  # of the next session, or of canary doctor --fix
    wrong: list[str] = field(default_factory=list)


class Place:
    """A clone with a separate store, keys and temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkout, self.temporary = folder, folder / "checkout", folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.uri = f"sqlite:///{folder}/mlflow.db"
        self.policy = folder / "two.yaml"
        self.policy.write_text("base: smoke\nlooks: {runs: [2], shares: [1.0]}\n")
        if not self.checkout.exists():
            subprocess.run(["git", "clone", "-q", str(ROOT), str(self.checkout)], check=True)

    def start(self, words: Sequence[str], mark: str = "") -> subprocess.Popen[bytes]:
        """Start a command in a separate process group. `mark`: in the environment of everything that it starts."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
        own = {
            "PYTHONPATH": str(self.checkout),
            "MLFLOW_TRACKING_URI": self.uri,
            "CANARY_KEYS": str(self.folder / "keys"),
            "CANARY_CACHE": str(self.folder / "cache"),
            "TMPDIR": str(self.temporary),
            "CANARY_KILLS": mark,
        }
        with (self.folder / "stderr.txt").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, *words],
                cwd=self.checkout,
                env={**kept, **own},
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )

    def run(self, words: Sequence[str]) -> int:
        """Run a command to its end; its exit code."""
        return self.start(words).wait()

    def client(self) -> Any:
        from canary_mlflow.tracking.stores.store import prepare_store

        return prepare_store(self.uri)

    def words(self, work: str) -> list[str]:
        """The command line; a top-up adds to the version that the previous session made."""
        if work == "session":
            return ["-m", "training", *TINY, "repeats=2"]
        if work == "sweep":
            return ["-m", "training", "--multirun", *TINY, "seed=0,1"]
        if work == "ab":
            words = ["ab", "--baseline", "HEAD", "--candidate", "HEAD", "--policy", str(self.policy)]
            return [*CANARY, *words, *TINY]
        numbers = [int(found.version) for found in self.client().search_model_versions(f"name='{MODEL}'")]
        return [*CANARY, "gate", MODEL, str(max(numbers)), "--top-up"]

    def wrong(self) -> Iterator[str]:
        """Sentences on what is not as it should be."""
        from canary_mlflow.registry.backends import registry_of
        from canary_mlflow.registry.guard.seal import require_seal

        client = self.client()
        experiments = [found.experiment_id for found in client.search_experiments()]
        running = client.search_runs(experiments, "attributes.status = 'RUNNING'", max_results=1000)
        yield from (f"{run.data.tags.get('canary.role')} {run.info.run_id} reads RUNNING" for run in running)
        for found in client.search_model_versions(f"name='{MODEL}'"):
            session = client.get_run(found.tags["canary.session_id"])
            below = client.search_runs(experiments, f"tags.`mlflow.parentRunId` = '{session.info.run_id}'")
            if any(run.info.end_time is None for run in (session, *below)):
                yield f"version {found.version} of a session that has not ended"
            try:
                require_seal(registry_of(client), found)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it
                yield f"version {found.version}: {error}"
        trees = subprocess.run(
            ["git", "worktree", "list"], cwd=self.checkout, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        yield from (f"worktree {tree}" for tree in trees[1:])
        yield from (f"folder {left.name}" for left in self.temporary.glob("canary-*"))
        if self.run([*CANARY, "audit", "verify"]):
            yield f"canary audit verify: {(self.folder / 'stderr.txt').read_text().strip()[-300:]}"


def alive(mark: str) -> list[int]:
    """The ids of the processes with this mark in their environment, without zombies."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            state = (entry.parent / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and f"CANARY_KILLS={mark}\0".encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return found


def send(process: subprocess.Popen[bytes], way: str, pause: float) -> None:
    """End a process in this way."""
    if way == "Ctrl-C twice":
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(pause)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.Signals[way])


def kill(place: Place, number: int, seed: int, lives: dict[str, float]) -> Kill:
    """Start a command, end it, run what comes next, and check."""
    chance = random.Random(f"{seed} {number}")
    work, way = WORKS[number % len(WORKS)], chance.choice(WAYS)
    words = place.words(work)
    mark, after = f"{os.getpid()}-{number}", chance.uniform(0, lives[work])
    process = place.start(words, mark)
    wrong, sent = [], False
    try:
        code = process.wait(after)
    except subprocess.TimeoutExpired:
        sent = True
        send(process, way, chance.uniform(0, 1.5))
        code = process.wait()
    began = time.monotonic()
    while (left := alive(mark)) and time.monotonic() - began < GONE:
        time.sleep(0.1)
    followed = time.monotonic() - began
    wrong += [f"process {pid} is left" for pid in left]
    said = (place.folder / "stderr.txt").read_text(errors="replace")
    if TRACEBACK in said:
        wrong.append(f"a traceback: {said.strip().splitlines()[-1][:200]}")
    if code not in (0, 3, 4) and code not in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT):
        wrong.append(f"exit code {code}")
    next_code = place.run(NEXT if number % 2 == 0 else [*CANARY, "doctor", "--fix"])
    if next_code not in ((0, 3) if number % 2 == 0 else (0,)):
        wrong.append(f"what came next ended with {next_code}: {(place.folder / 'stderr.txt').read_text()[-300:]}")
    wrong += place.wrong()
    return Kill(
        number=number, work=work, way=way, after=round(after, 2), life=round(lives[work], 2), sent=sent, code=code,
        followed=round(followed, 1), next_code=next_code, wrong=wrong,
    )  # fmt: skip


def lives_of(place: Place) -> dict[str, float]:
    """How many seconds each command takes if nothing ends it; measured once."""
    file = place.folder / "lives.json"
    if not file.exists():
        place.run([*NEXT[:-1], "repeats=2"])  # the champion
        lives = {}
        for work in WORKS:
            if work == "top-up":
                place.run(NEXT)
            words, began = place.words(work), time.monotonic()
            place.run(words)
            lives[work] = time.monotonic() - began
        file.write_text(json.dumps(lives))
    found: dict[str, float] = json.loads(file.read_text())
    return found


def table(done: Sequence[Kill]) -> str:
    """For each command and way, how many kills left nothing wrong, and of how many."""
    lines = [f"| | {' | '.join(WAYS)} |", "|---" * (len(WAYS) + 1) + "|"]
    for work in WORKS:
        cells = []
        for way in WAYS:
            some = [one for one in done if (one.work, one.way) == (work, way) and one.sent]
            cells.append(f"{sum(not one.wrong for one in some)} of {len(some)}" if some else "-")
        lines.append(f"| {work} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write(page: Path, text: str) -> None:
    """Put the table between its marks."""
    begin, end = (MARK.format(word) for word in ("begin", "end"))
    before, _, rest = page.read_text().partition(begin)
    page.write_text("\n".join([before + begin, text, end]) + rest.partition(end)[2])


def main() -> int:
    """Kill, check and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="a page with the marks of the table")
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    place = Place(asked.folder.resolve())
    kept = place.folder / "kills.jsonl"
    done = [Kill(**json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []
    os.environ["CANARY_KEYS"] = str(place.folder / "keys")  # the seals are checked here
    lives = lives_of(place)
    for number in sorted(set(range(asked.kills)) - {one.number for one in done}):
        done.append(kill(place, number, asked.seed, lives))
        with kept.open("a") as file:
            file.write(json.dumps(asdict(done[-1])) + "\n")
        last = done[-1]
        found = last.wrong or ("ok" if last.sent else "it had ended")
        print(f"{number:3d} {last.work:8s} {last.way:13s} {last.after:5.1f} of {last.life:5.1f} s: {found}", flush=True)
    print(table(done))
    if asked.write:
        write(asked.write, table(done))
    failed = [one for one in done if one.wrong]
    print(
        json.dumps(
            {"benchmark": "kills", "seed": asked.seed, "kills": sum(one.sent for one in done), "wrong": len(failed)}
        )
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
