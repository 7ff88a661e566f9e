"""`canary calibrate`: what unchanged runs of a place differ by, what a policy can resolve there, how often it errs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import open_store, print_json, store_option
from canary_mlflow.commands.words import ManyWords
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.errors import UsageError

if TYPE_CHECKING:
    from canary_mlflow.reports.calibration import Calibration
    from gates import Policy, Run
    from gates.calibration import Resplits
    from gates.sides import Side

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

    groups, left_out = read_groups(sessions, files, tracking_uri)
    found = calibrated(policy, groups, left_out)
    stored = store(Path.cwd(), found) if write else None
    if as_json:
        print_json({**as_dict(found), "stored": None if stored is None else str(stored)})
        return
    for line in lines(found):
        click.echo(line)
    click.echo(f"Stored in {stored}." if stored else "Nothing was stored; --write keeps these spreads for the gate.")


def read_groups(
    sessions: Sequence[str], files: Sequence[str], uri: str | None
) -> tuple[list[tuple[Run, ...]], list[str]]:
    """The finished runs, each once, a group for each session, or one for all files; and why others are left out.

    Raises UsageError where there are too few.
    """
    from gates.wording import listed

    if bool(sessions) == bool(files):
        raise UsageError("canary calibrate: found neither or both; expected session ids, or --files; give one of them")
    if files:
        from canary_mlflow.files.runs import read_side

        groups, again = [read_side([Path(word) for word in files])[0].runs], list[str]()
    else:
        from canary_mlflow.registry.evidence import find_evidence

        client, counts_of = open_store(uri), Counter(sessions)
        groups = [find_evidence(client, session).evidence.runs for session in counts_of]
        again = [f"session {name}: it was given {n} times, it counts once" for name, n in counts_of.items() if n > 1]
    good, left_out = each_once(groups)
    left_out = [*again, *left_out]
    if not any(len(group) > 1 for group in good):
        counts = ", ".join(str(len(group)) for group in good)
        why = f" ({listed(left_out)})" if left_out else ""
        raise UsageError(
            f"canary calibrate: found {counts} finished runs{why}; expected a group of at least 2; add runs"
        )
    return good, left_out


def each_once(groups: Sequence[Sequence[Run]]) -> tuple[list[tuple[Run, ...]], list[str]]:
    """The finished runs of each group, and why others are left out. A run of several groups, or a copy of one, counts
    in the largest alone: counted twice, it would make the spread look surer than it is."""
    from gates.records import Version
    from gates.sides import candidate_side, once

    everyone = candidate_side(Version(model="", version=None, runs=tuple(run for group in groups for run in group)))
    waiting = {run.run_id for run in everyone.finished}
    good = []
    for group in sorted(groups, key=len, reverse=True):
        good.append(once(run for run in group if run.run_id in waiting))
        waiting -= {run.run_id for run in group}
    return good, list(everyone.left_out)


def calibrated(policy: str, groups: Sequence[Sequence[Run]], left_out: Sequence[str] = ()) -> Calibration:
    """What the groups say by this policy. Raises UsageError for one that there is not, and for runs of mixed work."""
    from canary_mlflow.policies import load_policy
    from canary_mlflow.reports.calibration import Calibration, notes_on
    from gates.calibration import spreads

    refuse_mixed(groups)
    facts, when = shared_facts(groups)
    rules = load_policy(policy).resolve(facts)
    found = spreads(rules, groups)
    return Calibration(
        policy=rules,
        when=when,
        spreads=found,
        resplits=resplits(rules, groups),
        notes=[*left_out, *notes_on(groups, found)],
    )


def refuse_mixed(groups: Sequence[Sequence[Run]]) -> None:
    """Raise UsageError unless all runs did one work on one hardware: their spread is stored for what they share, and
    would be taken for that of either."""
    from gates.sides import mismatches

    side = pooled(groups)
    keys = [*mismatches(side, side, "workload"), *mismatches(side, side, "hardware")]
    mixed = [f"{each.key}: {each.baseline}" for each in keys]
    if mixed:
        raise UsageError(
            f"canary calibrate: found runs of more than one workload or hardware ({', '.join(mixed)}); expected "
            "unchanged runs of one; calibrate each alone"
        )


def pooled(groups: Sequence[Sequence[Run]]) -> Side:
    """The runs of all groups as one side of a comparison, on which the gate finds what they share."""
    from gates.sides import Side

    runs = tuple(run for group in groups for run in group)
    return Side(runs=runs, evidence=runs, left_out=())


def shared_facts(groups: Sequence[Sequence[Run]]) -> tuple[dict[str, str], dict[str, str]]:
    """What all runs agree on: all facts, to choose a policy's rules; and those that a stored spread holds for."""
    from gates.sides import facts

    side = pooled(groups)
    found = facts(side, side)
    hardware = {key for run in side.runs for key in run.hardware}
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
    """Write the spreads beside those of other places, at the end, where they win over others with as many facts
    (Policy.prior_of); the same facts are written over. Raises UsageError for a file of another form."""
    import yaml

    from canary_mlflow.policies import PRIORS_FILE, read_priors
    from gates.calibration import known_priors
    from gates.policy_writer import known_to_dict

    path = folder / PRIORS_FILE
    name = " ".join([found.policy.name, *found.when.values()])
    priors = {key: known for key, known in read_priors(path).items() if key != name} if path.exists() else {}
    priors[name] = known_to_dict(known_priors(name, dict(found.when), found.spreads))
    text = yaml.safe_dump({"priors": priors}, sort_keys=False, allow_unicode=True)
    path.write_text(f"# Written by canary calibrate; policies read it in the folder they are used in.\n{text}")
    return path
