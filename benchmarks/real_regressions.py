"""Real regressions of trl, transformers and peft in two old environments: does `canary upgrade` see and name them?

    python benchmarks/real_regressions.py [--only NAME …] [--harmless] [--releases] [--out FILE]
    python benchmarks/real_regressions.py --write docs/why.md

Each row is a pair of releases from a public thread (docs/why.md). benchmarks/regressions/train.py, which does not
import this project, trains in both and says first whether the regression is there at all; then `canary upgrade` tries
the same script with its callback, with three or more packages moved that have nothing to do with it. Environments are
built by uv from the package index, and kept (CANARY_ENVIRONMENTS). A row that cannot be built is said and skipped.
`--harmless`: consecutive minor releases instead, which are to block on nothing but a fact that really differs. One
JSON line for each row; rows that are in FILE already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from campaign import write  # the path is set above

from canary_mlflow.errors import CanaryError
from canary_mlflow.reports.upgrade import explained
from canary_mlflow.upgrading.environments import build
from canary_mlflow.upgrading.judging import other_facts
from canary_mlflow.upgrading.pins import lock
from canary_mlflow.upgrading.probing import Prober
from canary_mlflow.upgrading.upgrade import Plan, Trial

SCRIPTS = Path(__file__).with_name("regressions")
OURS = ("mlflow==3.17.2", "filelock>=3.15", "junitparser", "psutil", "click>=8.2", "pyyaml", "rich", "scipy",
        "numpy>=2")  # fmt: skip
"""What the callback needs beside the training stack."""
OLD = {"trl": "0.13.0", "transformers": "4.47.1", "peft": "0.14.0", "accelerate": "1.2.1", "datasets": "3.2.0"}
OLDER = {"transformers": "4.45.2", "peft": "0.13.2", "accelerate": "1.0.1", "datasets": "3.0.2"}
MIDDLE = {"transformers": "4.57.3", "peft": "0.17.1", "accelerate": "1.11.0", "datasets": "4.4.1"}
NEW = {"trl": "1.14.2", "transformers": "5.19.0", "peft": "0.21.2", "accelerate": "1.14.0", "datasets": "5.2.0"}
INNOCENT = {
    "tqdm": ("4.67.0", "4.67.1"),
    "regex": ("2025.11.3", "2026.1.15"),
    "psutil": ("7.1.3", "7.2.2"),
    "xxhash": ("3.5.0", "3.6.0"),
}
Seen = Mapping[str, Any]


def loss(seen: Seen, at: int = 0) -> float:
    return float(seen["rows"][at]["loss"])


def loss_times(low: float, high: float) -> Callable[[Seen, Seen], bool]:
    """The first loss of the bad side is so many times the good one's."""
    return lambda good, bad: "rows" in bad and low <= abs(loss(bad) / loss(good)) <= high


def gradient_times(low: float, high: float) -> Callable[[Seen, Seen], bool]:
    """The first gradient norm of the bad side is so many times the good one's, of the same loss."""

    def shows(good: Seen, bad: Seen) -> bool:
        first, other = good["rows"][0], bad["rows"][0]
        return bool(first["loss"] == other["loss"] and low <= other["grad_norm"] / first["grad_norm"] <= high)

    return shows


def crashes(kind: str) -> Callable[[Seen, Seen], bool]:
    """The bad side ends with such an exception."""
    return lambda good, bad: "rows" in good and kind in str(bad.get("ended", ""))


def trains_less(good: Seen, bad: Seen) -> bool:
    """Fewer parameters train at the end than at the beginning, on the bad side alone; none at all ends the training."""
    if "ended" in bad:
        return "rows" in good and "does not require grad" in str(bad["ended"])
    return bad["trainable"][1] < bad["trainable"][0] and good["trainable"][1] == good["trainable"][0]


def other_data(good: Seen, bad: Seen) -> bool:
    return bool(good["data"] != bad["data"])


def gradient_apart(by: float) -> Callable[[Seen, Seen], bool]:
    """The first gradient norm differs by more than a factor, either way."""

    def shows(good: Seen, bad: Seen) -> bool:
        factor = bad["rows"][0]["grad_norm"] / good["rows"][0]["grad_norm"]
        return bool(max(factor, 1 / factor) > by)

    return shows


def loss_apart(by: float) -> Callable[[Seen, Seen], bool]:
    """The first loss differs by more than a factor, either way."""
    return lambda good, bad: max(loss(bad) / loss(good), loss(good) / loss(bad)) > by


def later_loss(good: Seen, bad: Seen) -> bool:
    """The first step is the same, a later one is not."""
    return bool(good["rows"][0] == bad["rows"][0] and good["rows"][1:] != bad["rows"][1:])


def logged_apart(key: str, by: float) -> Callable[[Seen, Seen], bool]:
    """The last value of what was logged under a name differs by more than a factor, either way."""

    def shows(good: Seen, bad: Seen) -> bool:
        first, other = ([row[key] for row in one["logged"] if key in row][-1] for one in (good, bad))
        return bool(max(first / other, other / first) > by)

    return shows


def same_start(good: Seen, bad: Seen) -> bool:
    """The first four steps are the same, a later one is not."""
    return bool(good["rows"][:4] == bad["rows"][:4] and good["rows"][4:] != bad["rows"][4:])


def resumes_otherwise(good: Seen, bad: Seen) -> bool:
    """The training without a pause is the same, the one that was taken up again is not."""
    return bool(good["rows"] == bad["rows"] and good["resumed"] != bad["resumed"])


def costs(what: str, by: float) -> Callable[[Seen, Seen], bool]:
    """CPU time before the training, or of its median step, is more than so many times the good side's."""
    return lambda good, bad: bool(bad[what] > by * good[what])


def takes_memory(by: float) -> Callable[[Seen, Seen], bool]:
    """The peak grows by so many times as much during the training."""
    return lambda good, bad: bool(bad["memory"][1] - bad["memory"][0] > by * (good["memory"][1] - good["memory"][0]))


def saves_otherwise(good: Seen, bad: Seen) -> bool:
    """The files hold other tensors, by their names."""
    return {path: sorted(names) for path, names in good["saved"].items()} != {
        path: sorted(names) for path, names in bad["saved"].items()
    }


def trains_fewer(good: Seen, bad: Seen) -> bool:
    """Fewer parameters train from the beginning on."""
    return bool(bad["trainable"][0] < good["trainable"][0])


def other_weights(good: Seen, bad: Seen) -> bool:
    """The weights are of another type."""
    return bool(good["weights"] != bad["weights"])


def other_argument(*names: str) -> Callable[[Seen, Seen], bool]:
    """An argument that the script does not set resolves otherwise."""
    return lambda good, bad: any(good["arguments"][name] != bad["arguments"][name] for name in names)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One regression: a set of packages, what moves (the culprit), the training that shows it, and how it is told."""

    name: str
    source: str
    base: Mapping[str, str]
    culprit: str
    good: str
    bad: str
    kind: str
    shows: Callable[[Seen, Seen], bool]
    innocents: Mapping[str, tuple[str, str]] = field(default_factory=lambda: INNOCENT)
    script: str = "train.py"


SEEN = (
    Row(name="loss-4-ln-2", source="transformers#35856, trl#2617", base=OLD, culprit="transformers", good="4.47.1",
        bad="4.48.1", kind="dpo-accumulation", shows=loss_times(3.9, 4.1)),
    Row(name="gradient-quarter", source="the releases of the row above", base=OLD, culprit="transformers",
        good="4.47.1", bad="4.48.0", kind="dpo-accumulation", shows=gradient_times(0.24, 0.26)),
    Row(name="kto-accumulation", source="trl#2617", base=OLD, culprit="transformers", good="4.47.1", bad="4.48.1",
        kind="kto-accumulation", shows=loss_times(3.5, 4.5)),
    Row(name="packing-tails", source="trl#5075", base=MIDDLE, culprit="trl", good="0.26.2", bad="0.27.0",
        kind="sft-packing", shows=other_data),
    Row(name="olora-save", source="peft#3290", base={**NEW, "peft": "0.21.2"}, culprit="peft", good="0.21.2",
        bad="0.19.1", kind="olora-save", shows=trains_less),
    Row(name="dpo-without-triton", source="found by canary ab", base=NEW, culprit="trl", good="1.14.2", bad="1.15.0",
        kind="dpo", shows=crashes("AttributeError")),
    Row(name="cpo-batch-samples", source="trl#2292", base={**OLD, "trl": "0.11.4", "transformers": "4.45.2"},
        culprit="transformers", good="4.45.2", bad="4.46.0", kind="cpo-accumulation",
        shows=crashes("'generator' object has no attribute 'generate'")),
    Row(name="orpo-accumulation", source="trl#2617", base=OLD, culprit="transformers", good="4.47.1", bad="4.48.1",
        kind="orpo-accumulation", shows=loss_times(3.5, 4.5)),
    Row(name="reward-gradient", source="trl#4104", base=OLD, culprit="transformers", good="4.47.1", bad="4.48.1",
        kind="reward-accumulation", shows=gradient_times(0.24, 0.26)),
    Row(name="defaults-flip", source="trl#3510, trl#3629",
        base={**OLD, "transformers": "4.53.3", "accelerate": "1.8.1", "peft": "0.16.0"}, culprit="trl",
        good="0.18.2", bad="0.19.1", kind="sft-defaults",
        shows=other_argument("bf16", "gradient_checkpointing", "learning_rate")),
    Row(name="kto-prompt-length", source="Soup#326", base=MIDDLE, culprit="trl", good="0.26.2", bad="0.27.0",
        kind="kto-prompt-length", shows=crashes("TypeError")),
    Row(name="orpo-prompt-length", source="Soup#326", base=MIDDLE, culprit="trl", good="0.26.2", bad="0.28.0",
        kind="orpo-prompt-length", shows=crashes("TypeError")),
    Row(name="dpo-prompt-length", source="Soup#326, ArXiv-RL#11", base=MIDDLE, culprit="trl", good="0.26.2",
        bad="0.29.0", kind="dpo-prompt-length", shows=crashes("TypeError")),
)  # fmt: skip
UNSEEN = tuple(
    Row(script="unseen.py", name=name, source=source, base=base, culprit=culprit, good=good, bad=bad, kind=kind,
        shows=shows)
    for name, source, base, (culprit, good, bad), kind, shows in (
        ("smoothing-accumulation", "transformers#46731", OLDER,
         ("transformers", "4.45.2", "4.46.3"), "smoothing-accumulation", gradient_apart(1.5)),
        ("byte-level-llama", "transformers#45488", {**MIDDLE, "peft": "0.18.1"},
         ("transformers", "4.57.3", "5.3.0"), "byte-level", other_data),
        ("saved-bf16", "sentence-transformers#3773", {**MIDDLE, "peft": "0.18.1"},
         ("transformers", "4.57.3", "5.3.0"), "saved-bf16", other_weights),
        ("cache-import", "trl#4820", {**MIDDLE, "peft": "0.17.1"}, ("transformers", "4.57.3", "5.3.0"), "adapted",
         crashes("ImportError")),
        ("warmup-ratio", "semantic-router#3940", {**NEW, "transformers": "5.14.1"},
         ("transformers", "5.14.1", "5.15.1"), "warmup-ratio", crashes("TypeError")),
        ("decay-groups", "transformers#35927", {**OLD, "transformers": "4.48.3", "peft": "0.14.0"},
         ("transformers", "4.48.3", "4.50.3"), "decay", later_loss),
        ("untrained-head", "peft#2642", {**OLD, "transformers": "4.51.3"}, ("peft", "0.14.0", "0.16.0"),
         "classifier", trains_fewer),
        ("prompt-tuning-attribute", "peft#2477", {**OLD, "transformers": "4.51.3"}, ("peft", "0.14.0", "0.15.1"),
         "classifier", crashes("AttributeError")),
        ("column", "datasets#7676, course#1181", {**MIDDLE, "datasets": "3.6.0"}, ("datasets", "3.6.0", "4.0.0"),
         "column", crashes("ValueError")),
        ("unscaled-rewards", "trl#3991", {**MIDDLE, "transformers": "4.55.4"}, ("trl", "0.21.0", "0.22.1"),
         "group-unscaled", gradient_apart(1.2)),
        ("last-token", "trl#2332", {**OLD, "transformers": "4.46.3"}, ("trl", "0.13.0", "0.12.2"), "dpo-pairs",
         gradient_apart(1.001)),
        ("cut-by-default", "trl#2587", OLD, ("trl", "0.13.0", "0.14.0"), "dpo-long", gradient_apart(1.001)),
        ("appended-eos", "trl#3091", {**OLD, "transformers": "4.50.3"}, ("trl", "0.15.2", "0.16.0"), "sft-text",
         other_data),
        ("own-labels", "trl#3589, fms-hf-tuning#600", {**OLD, "transformers": "4.52.4", "accelerate": "1.7.0"},
         ("trl", "0.16.1", "0.18.2"), "own-labels", loss_apart(1.001)),
    )
)  # fmt: skip
LATER = tuple(
    Row(script="later.py", name=name, source=source, base=base, culprit=culprit, good=good, bad=bad, kind=name,
        shows=shows)
    for name, source, base, (culprit, good, bad), shows in (
        ("epochs", "transformers#36297, #38837", OLDER, ("transformers", "4.45.2", "4.48.3"), same_start),
        ("decay", "transformers#35927", {**OLD, "transformers": "4.48.3"}, ("transformers", "4.48.3", "4.50.3"),
         later_loss),
        ("resumed", "transformers#40691", {**OLD, "transformers": "4.51.3", "accelerate": "1.6.0"},
         ("accelerate", "1.6.0", "1.7.0"), resumes_otherwise),
        ("adapter-head", "transformers#48595", {**MIDDLE, "peft": "0.18.1"}, ("transformers", "4.57.3", "5.3.0"),
         logged_apart("eval_loss", 1.001)),
        ("output-layer", "trl#1287", {**OLDER, "peft": "0.6.2"}, ("peft", "0.6.2", "0.7.1"), saves_otherwise),
        ("group-weighted", "trl#5352", MIDDLE, ("trl", "0.26.2", "0.29.0"), logged_apart("reward", 1.5)),
        ("added-tokens", "transformers#46315", {**MIDDLE, "peft": "0.18.1"}, ("transformers", "4.57.3", "5.3.0"),
         costs("prepared", 2)),
        ("one-column", "lerobot#2895", {**MIDDLE, "datasets": "4.0.0"}, ("datasets", "4.0.0", "4.4.1"),
         costs("step", 2)),
        ("wide", "trl#4013, trl#7066", {**MIDDLE, "transformers": "4.55.4"}, ("trl", "0.21.0", "0.22.1"),
         takes_memory(1.3)),
    )
)  # fmt: skip
ROWS = (*SEEN, *UNSEEN, *LATER)
CONSECUTIVE = {
    "accelerate": ("sft-accumulation", "1.11.0 1.12.0 1.13.0 1.14.0 1.15.0"),
    "peft": ("sft-lora", "0.17.1 0.18.1 0.19.1 0.20.0 0.21.2"),
    "transformers": ("sft-accumulation", "5.15.1 5.16.1 5.17.0 5.18.0 5.19.0 5.20.2 5.21.1 5.22.2 5.23.0"),
    "trl": ("sft-accumulation", "1.6.0 1.7.1 1.8.0 1.9.2 1.10.0 1.11.0 1.12.0 1.13.0 1.14.2 1.15.0 1.16.0"),
}
"""The last patch of each minor release, beside the other packages of NEW; nothing else moves, so that a set is tried
once for both of its pairs."""
HARMLESS = tuple(
    Row(name=f"{package}-{good}-{bad}", source="consecutive releases", base=NEW, culprit=package, good=good, bad=bad,
        kind=kind, shows=lambda good, bad: True, innocents={})
    for package, (kind, versions) in CONSECUTIVE.items() for good, bad in pairwise(versions.split())
)  # fmt: skip


def sides(row: Row) -> Plan:
    """Both locked sets; the innocent packages move with the culprit."""
    moving = row.innocents.items()
    before = {**row.base, row.culprit: row.good, **{name: old for name, (old, _) in moving}}
    torch = os.environ.get("REGRESSIONS_TORCH", "2.13.0+cpu")
    names = [word for word in OURS if word.partition("=")[0] not in before]
    good = lock({**before, "torch": torch}, [name for name in names if "psutil" not in name], {})
    bad = lock({row.culprit: row.bad, **{name: new for name, (_, new) in moving}}, good, good)
    return Plan(before=good, now=bad)


def bare(python: Path, row: Row) -> dict[str, Any]:
    """What the script says of itself, without this project."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(python), str(SCRIPTS / row.script), row.kind], cwd=folder, capture_output=True, text=True, check=False,
            env={**os.environ, "WATCHED": "0", "PYTHONPATH": ""},
        )  # fmt: skip
    line = next((line for line in done.stdout.splitlines() if line.startswith("SEEN ")), "")
    if line:
        found: dict[str, Any] = json.loads(line.removeprefix("SEEN "))
        return found
    return {"ended": (done.stderr.strip().splitlines() or ["nothing"])[-1][:200]}


def try_(row: Row, work: Path, *, releases: bool) -> dict[str, Any]:
    """One row: whether it reproduces, whether it was seen, by what, and which package was named."""
    said: dict[str, Any] = {"name": row.name, "source": row.source, "pair": f"{row.culprit} {row.good} → {row.bad}"}
    try:
        plan = sides(row)
        python = [build(pins) for pins in (plan.before, plan.now)]
    except CanaryError as error:
        return {**said, "skipped": str(error)[:300]}
    good, bad = (bare(one, row) for one in python) if row in ROWS else ({}, {})
    try:
        said["reproduces"] = bool(row.shows(good, bad)) if good else None
    except (KeyError, TypeError, ZeroDivisionError) as error:
        said["reproduces"] = False
        said["why"] = f"{error!r}: {good.get('ended', 'good')} / {bad.get('ended', 'bad')}"
    prober = Prober(command=f"python {SCRIPTS / row.script} {row.kind}", work=work, overrides={"WATCHED": "1"})
    trial = Trial(plan=plan, prober=prober, say=lambda line: print(f"  {row.name}: {line}", file=sys.stderr))
    try:
        found = trial.carry_out(releases=releases)
    except CanaryError as error:
        return {**said, "skipped": str(error)[:300]}
    named = [one.name for one in found.culprit.packages] if found.culprit else []
    return {
        **said,
        "outcome": found.outcome,
        "open": found.finding.open,
        "seen": [one.said[:160] for one in found.finding.symptoms[:3]],
        "named": explained(found.culprit) if found.culprit else "",
        "right": named[:1] == [row.culprit],
        "moved": len(plan.changes),
        "defaults": [[one.key, one.before[:60], one.now[:60], one.explains] for one in found.defaults],
        "besides": [one.key for one in other_facts(found.finding) if not one.decides][:8],
        "probes": len(found.probes),
        "minutes": round(found.seconds / 60, 1),
    }


def table(found: list[dict[str, Any]]) -> list[str]:
    """A line for each regression; then one for all harmless pairs, and one for each of those that is no PASS."""
    lines = ["| pair | reproduces | `canary upgrade` says | named |", "|---|---|---|---|"]
    real = {row.name for row in ROWS}
    for one in (one for one in found if one["name"] in real):
        if "skipped" in one:
            lines.append(f"| {one['pair']}, {one['name']} | not tried: {cell(one['skipped'])} | | |")
            continue
        said = "; ".join(cell(each) for each in one["seen"][:2]) or cell(one["open"]) or "nothing that blocks"
        bare = "yes" if one["reproduces"] else "no"
        lines.append(f"| {one['pair']}, {one['name']} ({one['source']}) | {bare} | {one['outcome']}: {said} | "
                     f"{cell(one['named']) or 'nothing'} |")  # fmt: skip
    calm = [one for one in found if one["name"] not in real]
    tried = [one for one in calm if "skipped" not in one]
    passed = sum(one["outcome"] == "PASS" for one in tried)
    if calm:
        lines += ["", f"Of {len(calm)} consecutive releases {len(tried)} installed, {passed} PASS."]
    if others := [one for one in tried if one["outcome"] != "PASS"]:
        lines += ["", "| pair | `canary upgrade` says | because of |", "|---|---|---|"]
    for one in others:
        why = "; ".join(map(cell, one["seen"] or one["besides"][:4])) or cell(one["open"])
        lines.append(f"| {one['pair']} | {one['outcome']} | {why} |")
    return lines


def cell(text: str) -> str:
    """It in one cell of a table, without the place of an environment."""
    text = re.sub(r" \(/\S*", "", text)
    return text.replace("|", "/").replace("`", "'").replace("\n", " ")[:110]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--harmless", action="store_true")
    parser.add_argument("--releases", action="store_true", help="halve over the culprit's releases too")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--work", type=Path, default=Path(".canary-upgrade"))
    parser.add_argument("--table", action="store_true", help="Try nothing: the table of what FILE holds.")
    parser.add_argument("--write", type=Path, metavar="DOCUMENT", help="Put it between the marks of a document.")
    given = parser.parse_args()
    there = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    if given.table or given.write:
        marks = {"unseen": UNSEEN, "later": LATER}
        parts = {f"{mark} regressions": [one for one in there if one["name"] in {row.name for row in rows}]
                 for mark, rows in marks.items()}  # fmt: skip
        known = {id(one) for part in parts.values() for one in part}
        parts["real regressions"] = [one for one in there if id(one) not in known]
        tables = {mark: table(rows) for mark, rows in parts.items() if rows}
        print("\n\n".join("\n".join(lines) for lines in tables.values()))
        if given.write:
            write(given.write, tables)
        return
    rows = [row for row in (HARMLESS if given.harmless else ROWS) if not given.only or row.name in given.only]
    for row in rows:
        if any(one["name"] == row.name for one in there):
            continue
        found = try_(row, given.work.absolute(), releases=given.releases)
        with given.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        there.append(found)
        print(json.dumps(found))
    done = [one for one in there if one["name"] in {row.name for row in rows}]
    real = [one for one in done if one.get("reproduces")]
    print(json.dumps({
        "rows": len(done),
        "skipped": sum("skipped" in one for one in done),
        "reproduce": len(real),
        "blocked": sum(one.get("outcome") == "BLOCK" for one in real),
        "named": sum(bool(one.get("right")) for one in real),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
