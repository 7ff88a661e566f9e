"""In whose stack it works: builds an environment for each cell of docs/measured/stacks.md and does a team's day in it.

    python benchmarks/stacks.py [--only CELL ...] [--folder FOLDER] [--again]

A cell is a release of MLflow with a place for its store, one of Transformers and TRL, or a loop without a Transformers
trainer (stack_loop.py: plain torch, Lightning, Accelerate). Its environment is what uv
resolves from our wheel and these releases alone, so a range in pyproject.toml that refuses them fails here. In it, and
outside of the checkout: a session of three trainings by the callback (stack_session.py), registered and judged
(BOOTSTRAP); the same again (PASS); one with a thousandfold learning rate (BLOCK); a plain client that moves the
champion's alias (refused, where the release can have a guard); the pages of `mlflow server --app-name canary`. Where
TRL is new enough for the extra `train`: our own canaries, a smoke session of each.

Each cell adds a line to benchmarks/data/stacks.jsonl as it ends; a cell that has one is not run again, except with
--again.
Exits with 1 where something is not ok that was ok in a cell's last line before.
`make docs` makes the tables of docs/measured/stacks.md of the last line of each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "benchmarks" / "data" / "stacks.jsonl"
SCRIPTS = {"trainer": ROOT / "benchmarks" / "stack_session.py", "loop": ROOT / "benchmarks" / "stack_loop.py"}
PRODUCT = ("canary_mlflow", "gates", "training", "conf", "pyproject.toml")
TORCH = "2.13.0"
RATE, HARMFUL = "5e-3", "5e0"
POLICY = """base: smoke
overlays: {cpu: null}
rules:
  step_time: {role: advisory}
  step_time_drift: {role: advisory}
  run_time: {role: advisory}
  tokens_per_second: {role: advisory}
"""
"""As in docs/tutorial.md: steps of ten milliseconds, beside which a busy machine looks like a change."""

MOVE = """
import sys
from mlflow import MlflowClient
MlflowClient().set_registered_model_alias(sys.argv[1], "champion", "3")
"""
GUARDED = (3, 10)
"""MLflow from which on an alias can be guarded (docs/compatibility.md)."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    mlflow: str
    transformers: str = ""  # none: a loop
    trl: str = ""
    place: str = "SQLite"
    server: str = ""  # of another MLflow, whose environment serves
    algorithms: tuple[str, ...] = ("sft",)
    also: tuple[str, ...] = ()

    @property
    def extra(self) -> str:
        return "[train]" if len(self.algorithms) > 1 and numbers(self.trl) >= TRAIN_FROM else ""

    @property
    def name(self) -> str:
        if self.server:
            return f"mlflow-{self.mlflow}-at-{self.server}"
        if not self.trl:
            return "-".join(["loop", *self.algorithms, *(one.split("==")[1] for one in self.also[:1])])
        if len(self.algorithms) > 1:
            return f"trl-{self.trl}"
        return f"mlflow-{self.mlflow}-{self.place.lower()}"

    @property
    def packages(self) -> list[str]:
        trainers = [f"transformers=={self.transformers}", f"trl=={self.trl}"] if self.trl else []
        return [f"mlflow=={self.mlflow}", *trainers, f"torch=={TORCH}", *self.also]


OLD, NEW = ("4.57.6", "0.24.0"), ("5.24.0", "1.16.0")  # newer TRLs want a pyarrow that older MLflows refuse
RELEASES = {"2.22.5": OLD, "3.1.4": OLD, "3.5.1": NEW, "3.10.1": NEW, "3.14.0": NEW, "3.17.2": NEW}
ALSO = dict.fromkeys(("2.22.5", "3.1.4", "3.5.1"), ("sqlalchemy<2.1",))  # these break off with 2.1, which they accept
TODAY = "3.17.2"
TRAINERS = {"4.44.2": "0.11.4", "4.48.3": "0.13.0", "4.57.6": "0.24.0", "5.5.4": "1.0.0", "5.24.0": "1.16.0"}
OWN = ("sft", "dpo", "ppo", "grpo")
GRPO_FROM, TRAIN_FROM = (0, 14), (0, 24)
ALSO_TRL = {"0.11.4": ("datasets>=3,<4",)}  # uv takes one that breaks off with today's pyarrow, otherwise
LOOPS: dict[str, tuple[tuple[str, ...], ...]] = {
    "plain": ((),),
    "lightning": (("lightning==2.4.0",), ("lightning==2.6.6",)),
    "accelerate": (("accelerate==0.34.2",), ("accelerate==1.15.0",)),
    "ppo": (("trl==0.11.4", "transformers==4.44.2", *ALSO_TRL["0.11.4"]),),
}


def numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")[:2]))


def cells() -> list[Cell]:
    made = []
    for mlflow, (transformers, trl) in RELEASES.items():
        of: dict[str, Any] = {"transformers": transformers, "trl": trl}
        made += [Cell(mlflow=mlflow, place=place, also=ALSO.get(mlflow, ()), **of) for place in ("SQLite", "server")]
        if mlflow != TODAY:
            made.append(Cell(mlflow=TODAY, place="server", server=mlflow, transformers=NEW[0], trl=NEW[1]))
    for transformers, trl in TRAINERS.items():
        kinds = ("sft", "dpo", "grpo") if numbers(trl) >= GRPO_FROM else ("sft", "dpo")
        also = ALSO_TRL.get(trl, ())
        made.append(Cell(mlflow=TODAY, transformers=transformers, trl=trl, algorithms=kinds, also=also))
    for loop, packages in LOOPS.items():
        made += [Cell(mlflow=TODAY, algorithms=(loop,), also=also) for also in packages]
    return made


@dataclass
class Bench:
    folder: Path
    wheel: Path
    made: dict[str, Path] = field(default_factory=dict)

    def environment(self, packages: list[str], extra: str = "") -> Path:
        """What uv makes of the wheel and these packages; raises RuntimeError with its last words."""
        name = re.sub(r"[^\w.]+", "-", "_".join([*packages, extra]))
        place = self.folder / name
        if name not in self.made:
            uv = [sys.executable, "-m", "uv"]
            if not place.exists():
                subprocess.run([*uv, "venv", "-q", str(place), "--python", sys.executable], check=True)
            python = str(place / "bin/python")
            installed = [*uv, "pip", "install", "-q", "--reinstall-package", "canary-mlflow", "--python", python]
            done = ran([*installed, f"{self.wheel}{extra}", *packages], self.folder, {})
            if done.returncode:
                raise RuntimeError(last_words(done))
            self.made[name] = place
        return self.made[name]


def ran(words: list[str], folder: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW", "CANARY", "PYTHON"))}
    environment = {**kept, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=1200)


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [one.strip() for one in (done.stdout + done.stderr).splitlines() if one.strip()]
    return lines[-1][:300] if lines else f"exit {done.returncode}"


def day(cell: Cell, bench: Bench) -> Iterator[tuple[str, str]]:
    """(what, how it went): "ok", or the sentence that was said."""
    try:
        place = bench.environment(cell.packages, cell.extra)
        servers = place
        if cell.server:
            transformers, trl = RELEASES[cell.server]
            other = Cell(mlflow=cell.server, transformers=transformers, trl=trl, also=ALSO.get(cell.server, ()))
            servers = bench.environment(other.packages)
    except RuntimeError as error:
        yield "install", str(error)
        return
    yield "install", "ok"
    with tempfile.TemporaryDirectory(dir=bench.folder) as made:
        folder = Path(made)
        (folder / "policy.yaml").write_text(POLICY)
        if cell.place == "server":
            served = str(servers / "bin/mlflow")
            with serving([served, "server"], folder, servers, "/health") as address:
                yield from sessions(cell, place, folder, address)
        else:
            address = f"sqlite:///{folder}/mlflow.db"
            yield from sessions(cell, place, folder, address)
            if cell.algorithms == ("sft",):
                yield from pages(place, folder)
            if cell.extra:
                yield from own_canaries(place, folder)


def sessions(cell: Cell, place: Path, folder: Path, address: str) -> Iterator[tuple[str, str]]:
    variables = {"MLFLOW_TRACKING_URI": address, "PATH": f"{place}/bin:{os.environ['PATH']}"}
    python, canary = str(place / "bin/python"), str(place / "bin/canary")
    script = SCRIPTS["trainer" if cell.trl else "loop"]
    for algorithm in cell.algorithms:
        for version, (rate, word) in enumerate([(RATE, "BOOTSTRAP"), (RATE, "PASS"), (HARMFUL, "BLOCK")], start=1):
            if algorithm == "grpo" and version > 1:
                break  # a tiny model's first session need not learn, and then nothing can be compared with it
            trained = ran([python, str(script), algorithm, rate], folder, variables)
            if trained.returncode:
                yield f"{algorithm} session", last_words(trained)
                break
            if version == 1:
                yield f"{algorithm} session", "ok"
            if algorithm == "grpo":
                break
            gate = [canary, "gate", f"tiny-{algorithm}", str(version), "--policy", "policy.yaml"]
            judged = ran(gate, folder, variables)
            said = judged.stdout.split()[:1]
            yield f"{algorithm} {word}", "ok" if said == [word] else f"{' '.join(said)} {last_words(judged)}"
            if said != [word]:
                break
    if cell.algorithms == ("sft",) and cell.place == "SQLite":
        yield "guard", guard(cell, python, folder, variables)


def own_canaries(place: Path, folder: Path) -> Iterator[tuple[str, str]]:
    variables = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/own.db", "PATH": f"{place}/bin:{os.environ['PATH']}"}
    for algorithm in OWN:
        done = ran([str(place / "bin/canary"), "run", "tier=smoke", f"algo={algorithm}"], folder, variables)
        said = [line for line in done.stdout.splitlines() if line.startswith(("BOOTSTRAP", "INCONCLUSIVE", "BLOCK"))]
        good = bool(said) and said[0].startswith("BOOTSTRAP")
        yield f"own {algorithm}", "ok" if good else (said or [last_words(done)])[0]


def guard(cell: Cell, python: str, folder: Path, variables: Mapping[str, str]) -> str:
    """A plain client moves the champion's alias to the version that was blocked."""
    moved = ran([python, "-c", MOVE, "tiny-sft"], folder, variables)
    can = numbers(cell.mlflow) >= GUARDED
    if moved.returncode:
        return "ok" if can else last_words(moved)
    return "moved the champion" if can else "none"


def pages(place: Path, folder: Path) -> Iterator[tuple[str, str]]:
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    with serving(
        [str(place / "bin/mlflow"), "server", "--app-name", "canary", *store], folder, place, "/canary"
    ) as address:
        try:
            with urllib.request.urlopen(f"{address}/canary", timeout=60) as page:
                text = page.read().decode()
                yield (
                    "pages",
                    "ok" if page.status == 200 and "tiny-sft" in text else f"{page.status}, without the model",
                )
        except HTTPError as error:
            yield "pages", f"{error.code} {' '.join(re.sub('<[^>]+>', ' ', error.read().decode()).split())[:200]}"
        except (URLError, OSError) as error:
            told = [line for line in (folder / "server.log").read_text().splitlines() if line.startswith("canary: ")]
            yield "pages", told[-1] if told else str(error)


@contextmanager
def serving(words: list[str], folder: Path, place: Path, path: str) -> Iterator[str]:
    """An MLflow server of the environment; its address once it answers at the path, whatever it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if "--backend-store-uri" not in words:
        words = [*words, "--backend-store-uri", f"sqlite:///{folder}/served.db"]
        words += ["--artifacts-destination", str(folder / "served")]
    variables = {**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}"}
    log = folder / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [*words, "--port", str(port), "--workers", "1"], cwd=folder, env=variables, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(address + path, timeout=5).close()
                break
            except HTTPError:
                break
            except (URLError, OSError):
                if server.poll() is not None:
                    break
                time.sleep(1)
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, 15)
        server.wait(timeout=30)


def last_lines() -> dict[str, dict[str, Any]]:
    """The last line of each cell."""
    lines = map(json.loads, FILE.read_text().splitlines()) if FILE.exists() else ()
    return {one["cell"]: one for one in lines}


def section() -> str:
    """The tables of docs/measured/stacks.md."""
    found = last_lines()
    by_mlflow, by_trl, by_loop = [], [], []
    for cell in cells():
        if cell.name in found:
            kind = by_loop if not cell.trl else by_mlflow if len(cell.algorithms) == 1 else by_trl
            kind.append({**found[cell.name], "loop": cell.algorithms[0], "packages": ", ".join(cell.also) or "torch"})
    day = ("session", "BOOTSTRAP", "PASS", "BLOCK")
    for one in by_loop:
        one["found"] = {what.removeprefix(f"{one['loop']} "): how for what, how in one["found"].items()}
    for one in by_mlflow:
        one["place"] = f"the server of MLflow {one['server']}" if one["server"] else one["place"]
    one_trainer = (*(f"sft {what}" for what in day), "guard", "pages")
    trained = ("sft BLOCK", "dpo BLOCK", "grpo session", *(f"own {algorithm}" for algorithm in OWN))
    return "\n\n".join(
        [
            table({"MLflow": "mlflow", "store": "place"}, by_mlflow, one_trainer),
            table({"Transformers": "transformers", "TRL": "trl"}, by_trl, trained),
            table({"loop": "loop", "beside": "packages"}, by_loop, day),
        ],
    )


def table(head: dict[str, str], lines: list[dict[str, Any]], columns: tuple[str, ...]) -> str:
    """One row a cell; what was not tried there is a dash, and what went wrong is said below."""
    rows, notes = [], []
    for one in lines:
        shown = []
        for what in columns:
            how = one["found"].get(what, "-")
            if how not in ("ok", "-", "none"):
                notes.append(f"{len(notes) + 1}. {what}: {how.partition('; expected')[0]}")
                how = f"no ({len(notes)})"
            shown.append(how)
        names = (one[key] for key in head.values())
        rows.append((*names, *shown, f"{one['minutes']:.1f}", f"{one['python']}, {one['code']}"))
    said = ["| " + " | ".join(row) + " |" for row in [(*head, *columns, "minutes", "Python, commit"), *rows]]
    said.insert(1, "|" + "---|" * (len(head) + len(columns) + 2))
    return "\n".join([*said, *([""] if notes else []), *notes])


def code() -> str:
    return subprocess.check_output(
        ["git", "log", "-1", "--format=%h", "--abbrev=8", "--", *PRODUCT], cwd=ROOT, text=True
    ).strip()


def built_wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    subprocess.run(pip, cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="CELL")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "canary-stacks")
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    head = code()
    before = last_lines()
    done = set() if asked.again else set(before)
    worse = False
    bench = Bench(asked.folder, built_wheel(asked.folder / "wheel"))
    for cell in cells():
        if cell.name in done or (asked.only and cell.name not in asked.only):
            continue
        start = time.monotonic()
        found = dict(day(cell, bench))
        line = {
            "cell": cell.name, "code": head, "python": ".".join(map(str, sys.version_info[:2])), "mlflow": cell.mlflow,
            "server": cell.server, "place": cell.place, "transformers": cell.transformers, "trl": cell.trl,
            "minutes": round((time.monotonic() - start) / 60, 1), "found": found,
        }  # fmt: skip
        with FILE.open("a") as file:
            file.write(json.dumps(line) + "\n")
        bad = {what: how for what, how in found.items() if how != "ok"}
        print(f"{cell.name:28s} {line['minutes']:5.1f} min  {bad or 'ok'}", flush=True)
        were = before[cell.name]["found"] if cell.name in before else {}
        worse |= any(how == "ok" and found.get(what) != "ok" for what, how in were.items())
    sys.exit(worse)


if __name__ == "__main__":
    main()
