"""`canary calibrate`: what unchanged runs of a place differ by, what a policy can resolve there, how often it errs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from canary_mlflow.commands.shared import open_store, print_json, store_option
from canary_mlflow.commands.words import ManyWords
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.errors import UsageError

if TYPE_CHECKING:
    from canary_mlflow.reports.calibration import Calibration
    from gates import Policy, Run
    from gates.calibration import Resplits

SPLITS = 200
SIZES = ((5, 3), (3, 3), (2, 2))


@click.command(cls=ManyWords, epilog=EXIT_CODES)
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option("--files", multiple=True, metavar="FILE…", help="Unchanged runs as files, instead of recorded sessions.")
@click.option("--policy", default="smoke", show_default=True, metavar="NAME|PATH", help="Whose metrics are measured.")
@click.option("--write", is_flag=True, help="Store the spreads in canary-priors.yaml, which every policy then reads.")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout.")
@store_option
def calibrate(
    sessions: tuple[str, ...],
    files: tuple[str, ...],
    policy: str,
    write: bool,
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Measure what unchanged runs differ by: sessions of one version each (run ids), or files of one.

    Five runs are enough to begin with. With several sessions the spread inside each counts, and from three on it is
    learnt from all of them.
    """
    from canary_mlflow.reports.calibration import as_dict, lines

    found = calibrated(policy, read_groups(sessions, files, tracking_uri))
    stored = store(Path.cwd(), found) if write else None
    if as_json:
        print_json({**as_dict(found), "stored": None if stored is None else str(stored)})
        return
    for line in lines(found):
        click.echo(line)
    click.echo(f"Stored in {stored}." if stored else "Nothing was stored; --write keeps these spreads for the gate.")


def read_groups(sessions: Sequence[str], files: Sequence[str], uri: str | None) -> list[tuple[Run, ...]]:
    """The runs, a group for each session, or one for all files. Raises UsageError where there are too few."""
    if bool(sessions) == bool(files):
        raise UsageError("canary calibrate: found neither or both; expected session ids, or --files; give one of them")
    if files:
        from canary_mlflow.files.runs import read_side

        groups = [read_side([Path(word) for word in files])[0].runs]
    else:
        from canary_mlflow.registry.evidence import find_evidence

        client = open_store(uri)
        groups = [find_evidence(client, session).evidence.runs for session in sessions]
    good = [tuple(run for run in group if run.completed and not run.failure) for group in groups]
    if not any(len(group) > 1 for group in good):
        counts = ", ".join(str(len(group)) for group in good)
        raise UsageError(f"canary calibrate: found {counts} finished runs; expected a group of at least 2; add runs")
    return good


def calibrated(policy: str, groups: Sequence[Sequence[Run]]) -> Calibration:
    """What the groups say by this policy. Raises UsageError for one that there is not."""
    from canary_mlflow.policies import load_policy
    from canary_mlflow.reports.calibration import Calibration, notes_on
    from gates.calibration import spreads

    facts, when = shared_facts(groups)
    rules = load_policy(policy).resolve(facts)
    return Calibration(
        policy=rules,
        when=when,
        spreads=spreads(rules, groups),
        resplits=resplits(rules, groups),
        notes=notes_on(groups),
    )


def shared_facts(groups: Sequence[Sequence[Run]]) -> tuple[dict[str, str], dict[str, str]]:
    """What all runs agree on: all facts, to choose a policy's rules; and those that a stored spread holds for."""
    from gates.records import Version
    from gates.sides import baseline_side, candidate_side, facts

    runs = tuple(run for group in groups for run in group)
    side = candidate_side(Version(model="", version=None, runs=runs))
    found = facts(baseline_side(None, side), side)
    hardware = {key for run in runs for key in run.hardware}
    when = {key: found[key] for key in sorted(hardware | {"algo", "model", "tier"}) if key in found}
    return found, when


def resplits(policy: Policy, groups: Sequence[Sequence[Run]]) -> Resplits | None:
    """The largest group judged against itself; None where it is too small to be split."""
    import numpy as np

    from gates.calibration import resplit

    runs = max(groups, key=len)
    size = next(((k, m) for k, m in SIZES if k + m <= len(runs)), None)
    return None if size is None else resplit(policy, runs, *size, SPLITS, np.random.default_rng(0))


def store(folder: Path, found: Calibration) -> Path:
    """Write the spreads beside those of other places; the same facts are written over."""
    import yaml

    from canary_mlflow.policies import PRIORS_FILE
    from gates.calibration import known_priors
    from gates.policy_writer import known_to_dict

    path = folder / PRIORS_FILE
    before = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
    priors: dict[str, Any] = dict((before or {}).get("priors") or {})
    name = " ".join([found.policy.name, *found.when.values()])
    priors[name] = known_to_dict(known_priors(name, dict(found.when), found.spreads))
    text = yaml.safe_dump({"priors": priors}, sort_keys=False, allow_unicode=True)
    path.write_text(f"# Written by canary calibrate; policies read it in the folder they are used in.\n{text}")
    return path
