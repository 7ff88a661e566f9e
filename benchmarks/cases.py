"""Cases that were once answered wrongly: what is right, what this checkout answers, and whether that is right.

    python benchmarks/cases.py FOLDER [--slow] [--only NAME …]

FOLDER holds a folder of inputs for each group of cases; its README.md says where they come from. Those that train or
build environments take minutes, and are run with --slow alone. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VERDICT = re.compile(r"PASS|BLOCK|INCONCLUSIVE|healthy|warned|critical|failed|unknown")
PATIENCE = 3600  # seconds for a command


@dataclass(frozen=True, kw_only=True)
class Case:
    """Commands in a group's folder; the last is to end with one of these codes, and to print what matches `says` and
    nothing that matches `never`. `slow`: it trains or builds environments, in a copy of the folder."""

    group: str
    commands: tuple[str, ...]
    right: str
    codes: tuple[int, ...]
    says: str = ""
    never: str = "(?!)"
    slow: bool = False


def replayed(group: str, words: str, right: str, *codes: int, **given: Any) -> Case:
    return Case(group=group, commands=(f"canary replay {words}",), right=right, codes=codes, **given)


def judged(group: str, baseline: str, candidate: str, policy: str, right: str, *codes: int, **given: Any) -> Case:
    command = f"canary judge --baseline {baseline} --candidate {candidate} --policy {policy}"
    return Case(group=group, commands=(command,), right=right, codes=codes, **given)


NAN, RATES, RANKS, ALONE = "nan-in-spaced-lines", "rates-no-step-time", "ranks-and-bars", "one-log-resources"
ALARM = r"\b(CRITICAL|STOP)\b"
ANY = r"\b(WARN|CRITICAL|STOP)\b"
HALVED = r"only warns: .*(step_time|tokens_per_second) \([+-]\d"
LR_ZERO = "dpo_lr_zero_after_25"
CASES = (
    *(
        replayed(NAN, file, "failed, STOP nonfinite", 1, says=r"STOP .*nonfinite")
        for file in ("step-loss-grad.log", "jt-nan0.log")
    ),
    judged(NAN, "jt-a*.log", "jt-nan*.log", "files", "BLOCK nonfinite", 1, says=r"^BLOCK(.|\n)*onfinite"),
    replayed(NAN, "jt-a0.log", "healthy", 0, never=ANY),
    judged(RATES, "j-swift-a*.jsonl", "j-swift-slow*.jsonl", "perf", "BLOCK", 1, says=r"^BLOCK"),
    judged(RATES, "j-mlx-a*.log", "j-mlx-slow*.log", "perf", "BLOCK", 1, says=r"^BLOCK"),
    judged(RATES, "j-swift-a*.jsonl", "j-swift-slow*.jsonl", "files", "PASS that says the rate halved", 0, says=HALVED),
    judged(RATES, "j-mlx-a*.log", "j-mlx-slow*.log", "files", "PASS that says the rate halved", 0, says=HALVED),
    replayed(ALONE, "verl-mem-leak.jsonl", "WARN at least", 0, 1, says=ANY),
    replayed(ALONE, "overfit.json", "WARN at least", 0, 1, says=ANY),
    replayed(ALONE, "verl-mem-flat.jsonl", "healthy", 0, never=ANY),
    replayed(ALONE, "staircase-ok.json", "healthy", 0, never=ANY),
    replayed(RANKS, "ranks4-bad.log", "80 rows, or a note; failed", 1, says=r"\(80 rows|note: .*rank"),
    replayed(RANKS, "ranks4-ok.log", "80 rows, or a note; healthy", 0, says=r"\(80 rows|note: .*rank", never=ANY),
    replayed(RANKS, "accel-bar-ok.log", "read as healthy, or one line", 0, 2, never=rf"{ANY}|\n.*\n.*\n"),
    replayed(RANKS, "fastai-ok.txt", "read as healthy, or one line", 0, 2, never=rf"{ANY}|\n.*\n.*\n"),
    replayed(RANKS, "lightning-resume-long.csv", "no warning", 0, never=ANY),
    replayed(RANKS, "overlap.jsonl", "healthy", 0, never=ANY),
    replayed("watch", "--algo dpo dpo-healthy-noisy-stretch.jsonl", "healthy", 0, never=ANY),
    replayed("watch", "--algo grpo grpo-healthy-truncated-1.json", "at most WARN", 0, never=ALARM),
    replayed("watch", "--algo grpo grpo-healthy-truncated-2.json", "at most WARN", 0, never=ALARM),
    replayed("watch", "sft-diverges-x30-in-10-rows.json", "failed", 1, says=ALARM),
    replayed("watch", "classifier-memorised.json", "at most a note", 0, never=ANY),
    replayed("watch", "sft-overfits.json", "WARN", 0, says=r"\bWARN\b"),
    judged("gate", "base*.csv", "every10th*.csv", "smoke", "not PASS", 1, 3, never="^PASS"),
    judged(
        "gate",
        f"{LR_ZERO}/base-*.jsonl",
        f"{LR_ZERO}/lrzero-*.jsonl",
        "files",
        "not PASS, learning rate named",
        1,
        3,
        says=r"(?i)learning.rate",
        never="^PASS",
    ),
    Case(
        group="wrong-weights",
        commands=(
            "python user2.py",
            "canary gate wrong-weights 1 --policy learning.yaml",
            "canary register $(cat sid.txt) --weights w_bzero && canary gate wrong-weights 2 --policy learning.yaml",
        ),
        right="refused, or BLOCK",
        codes=(1, 2, 3),
        never="^PASS",
        slow=True,
    ),
    Case(
        group="leak-pretokenized",
        commands=(
            "python user5.py",
            "canary gate case-leak 1 --policy learning.yaml",
            "canary gate case-leak 2 --policy learning.yaml",
        ),
        right="not comparable or BLOCK, and never data unchanged",
        codes=(1, 3),
        never=r"^PASS|Changed: nothing that is recorded",
        slow=True,
    ),
    Case(
        group="stale-map-cache",
        commands=(
            "python make.py",
            'canary upgrade --from v457.txt --to transformers==5.3.0 --command "python train.py" --no-bisect',
        ),
        right="BLOCK",
        codes=(1,),
        says="^BLOCK",
        slow=True,
    ),
    Case(
        group="from-contradicts",
        commands=('canary upgrade --from before.txt --to transformers==4.47.1 --command "python train.py"',),
        right="at once, one line: what contradicts what",
        codes=(2,),
        says="trl",
        slow=True,
    ),
)


def answer(case: Case, folder: Path) -> tuple[int, str]:
    """The exit code of the case's last command, and what it printed."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch, case.group)
        shutil.copytree(folder / case.group, place)
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "MLFLOW_TRACKING_URI": f"sqlite:///{scratch}/mlflow.db",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        for command in case.commands:
            done = subprocess.run(
                ["bash", "-c", command], cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE
            )
        return done.returncode, done.stdout + done.stderr


def is_right(case: Case, code: int, said: str) -> bool:
    return (
        code in case.codes
        and re.search(case.says, said, re.MULTILINE) is not None
        and re.search(case.never, said, re.MULTILINE) is None
        and "Traceback" not in said
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    arguments = parser.parse_args()
    counts = {"right": 0, "wrong": 0, "not run": 0}
    for case in CASES:
        if arguments.only and case.group not in arguments.only:
            continue
        if case.slow and not arguments.slow:
            found, what = "not run", "needs --slow"
        else:
            code, said = answer(case, arguments.folder)
            found = "right" if is_right(case, code, said) else "wrong"
            lines = [line.strip() for line in said.splitlines() if len(line.strip()) > 1]
            first = next(filter(VERDICT.match, lines), lines[0] if lines else "")
            what = f"exit {code}: {first[:110]}"
        counts[found] += 1
        print(
            f"{found:8s}{case.group}: {case.commands[-1]}\n        expected: {case.right}\n        answered: {what}",
            flush=True,
        )
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
