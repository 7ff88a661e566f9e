"""Makes the real runs that the gate is measured on: unchanged ones, some under load, and faults at graded strength.

    python benchmarks/gate_runs.py FOLDER

81 unchanged runs of the embedded canaries (27 of each algorithm, in sessions of nine; every third session is made while
two busy loops hold the CPU), and three runs of each fault below; each session in a separate store,
FOLDER/<label>/mlflow.db. What already exists is not trained again. benchmarks/gate.py --store judges the unchanged
ones against each other, benchmarks/gate_faults.py the faults against them. Each session prints the seconds it took.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from sessions import runs_of, store_of, train  # noqa: E402  # the path is set above

from canary_mlflow.gates import Run  # noqa: E402

ALGOS = ("sft", "dpo", "ppo")
UNCHANGED = "unchanged"
SEEDS = (0, 100, 200)
BUSY_LOOPS = 2


@dataclass(frozen=True, kw_only=True)
class Session:
    """Runs of one kind: their words on the command line, and whether busy loops hold the CPU meanwhile."""

    algo: str
    kind: str
    words: tuple[str, ...] = ()
    tier: str = "smoke"
    repeats: int = 3
    beside_load: bool = False

    @property
    def label(self) -> str:
        """A name for the session, also that of its folder."""
        return f"{self.algo}-{self.tier}-{self.kind}".replace(" ", "_")


def _of(algo: str, kind: str, *words: str, tier: str = "smoke") -> Session:
    return Session(algo=algo, kind=kind, words=words, tier=tier)


def _graded(algo: str, fault: str, *strengths: float, words: tuple[str, ...] = ()) -> list[Session]:
    return [
        _of(algo, f"{fault} {strength:g}", f"fault={fault}", f"fault.strength={strength}", *words)
        for strength in strengths
    ]


HEALTHY = [
    Session(algo=algo, kind=f"{UNCHANGED} {seed}", words=(f"seed={seed}",), repeats=9, beside_load=seed == SEEDS[-1])
    for algo in ALGOS
    for seed in SEEDS
]
SMOKE = [
    *_graded("sft", "slow_step_from_n", 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, words=("fault.step=5",)),
    *_graded("sft", "slow_loader", 0.1, 0.3),
    *_graded("sft", "gc_storm", 0.1, 1),
    *_graded("sft", "memory_ballast", 0.03, 0.1, 0.3),
    *_graded("sft", "memory_leak", 1, 4),
    *_graded("sft", "lr_high", 3, 20, 200),
    _of("sft", "nan_batch", "fault=nan_batch"),
    _of("sft", "half the batch", "train.batch_size=4"),
    *_graded("dpo", "flipped_labels", 0.1, 0.25, 0.5),
    *_graded("dpo", "lr_high", 3, 20, 200),
    _of("dpo", "a tenth of beta", "algo.beta=0.01"),
    *_graded("ppo", "slow_step_from_n", 0.1, 0.3, words=("fault.step=5",)),
    *_graded("ppo", "lr_high", 3, 20, 200),
    _of("ppo", "a tenth of the KL target", "algo.target_kl=0.6"),
]
LONG = [
    Session(algo="sft", kind=UNCHANGED, tier="perf", repeats=5),
    _of("sft", "slower from the middle on 0.3", "fault=slow_step_from_n", "fault.step=250", tier="perf"),
    _of("sft", "gc_storm 0.05", "fault=gc_storm", "fault.strength=0.05", tier="perf"),
]
SESSIONS = [*HEALTHY, *SMOKE, *LONG]


def make(folder: Path, session: Session) -> None:
    """Train the session's runs unless its store exists."""
    place = folder / session.label
    if store_of(place).exists():
        return
    started = time.perf_counter()
    with _load(BUSY_LOOPS if session.beside_load else 0):
        whole = "watch.on_critical=warn"  # so that each check sees what it can of a fault: in runs that reach their end
        train(
            place, [f"algo={session.algo}", f"tier={session.tier}", f"repeats={session.repeats}", whole, *session.words]
        )
    print(f"{session.label}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _load(loops: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def read(folder: Path, session: Session) -> list[Run]:
    """The session's runs, including failed ones, in the order of their seeds."""
    found = runs_of(f"sqlite:///{store_of(folder / session.label).resolve()}")
    return sorted((run for _, run in found), key=lambda run: run.seed or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    for session in SESSIONS:
        make(folder, session)


if __name__ == "__main__":
    main()
