"""`canary calibrate`: how much unchanged runs differ at a place, and what a policy can resolve there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from canary_mlflow.analysis.formats import write_whole
from canary_mlflow.commands.shared import ManyWords, open_store, print_json, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo

if TYPE_CHECKING:
    from canary_mlflow.gates import Run
    from canary_mlflow.reports.calibration import Calibration


@click.command(cls=ManyWords, epilog=EXIT_CODES)
@click.argument("sessions", nargs=-1, metavar="[SESSION|MODEL/VERSION]...")
@click.option("--files", multiple=True, metavar="FILE…", help="Unchanged runs as files, instead of recorded sessions.")
@click.option(
    "--policy", default="smoke", show_default=True, metavar="NAME|PATH", help="The policy whose metrics are measured."
)
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
    """Measure how much unchanged runs differ. Takes sessions (run ids), versions or files of unchanged code.

    Five runs are enough to begin with. With several sessions the spread inside each counts; from three on it is learned
    from all of them.
    """
    from canary_mlflow.reports.calibration import as_dict, lines

    groups, left_out = read_groups(sessions, files, tracking_uri)
    found = calibrated(policy, groups, left_out)
    stored, lost = store(Path.cwd(), found) if write else (None, "")
    if as_json:
        kept = {"stored": None if stored is None else str(stored), "lost": lost}
        print_json("calibration", {**as_dict(found), **kept})
        return
    for line in lines(found):
        echo(line)
    echo(f"Stored in {stored}." if stored else "Nothing was stored; --write keeps these spreads for the gate.")
    if lost:
        echo(f"Note: {lost}.")


def read_groups(
    sessions: Sequence[str], files: Sequence[str], uri: str | None
) -> tuple[list[tuple[Run, ...]], list[str]]:
    """The finished runs, each once, in one group per session or one for all files; and why others are left out."""
    from canary_mlflow.analysis.unchanged import each_once

    if bool(sessions) == bool(files):
        given = "both sessions and files" if files else "no runs"
        raise UsageError(f"found {given}; expected sessions or versions, or --files F…; give one of them")
    if files:
        from canary_mlflow.files.runs import read_side

        groups, again = [read_side([Path(word) for word in files])[0].runs], list[str]()
    else:
        from canary_mlflow.resolve import find_evidence

        client, counts_of = open_store(uri), Counter(sessions)
        found = [find_evidence(client, session).evidence.runs for session in counts_of]
        groups = [tuple(run for run in group if not run.not_promotable) for group in found]
        again = [f"session {name}: it was given {n} times, it counts once" for name, n in counts_of.items() if n > 1]
        made = {run.run_id: run.not_promotable for run in chain.from_iterable(found) if run.not_promotable}
        again += [f"run {name}: left out, it was made with {load}" for name, load in made.items()]
    good, left_out = each_once(groups)
    return good, [*again, *left_out]


def calibrated(policy: str, groups: Sequence[Sequence[Run]], left_out: Sequence[str] = ()) -> Calibration:
    """What the groups show under this policy. Raises UsageError for an unknown policy, for runs of mixed work and for
    too few runs."""
    from canary_mlflow.analysis.unchanged import healthy, refuse_mixed, shared_facts
    from canary_mlflow.gates.calibration import spreads
    from canary_mlflow.policies import load_policy
    from canary_mlflow.reports.calibration import Calibration, notes_on, tier_names, unknown_place

    refuse_mixed(groups)
    facts, when = shared_facts(groups)
    rules = load_policy(policy).resolve(facts)
    good, unfit = healthy(rules, groups, left_out)
    found = spreads(rules, good)
    return Calibration(
        policy=rules,
        when=when,
        spreads=found,
        margins={
            tier: {each.rule.name: each.margin for each in spreads(load_policy(tier).resolve(facts), good)}
            for tier in tier_names()
        },
        notes=[*unfit, *unknown_place(when), *notes_on(good, found)],
    )


def store(folder: Path, found: Calibration) -> tuple[Path, str]:
    """Append the spreads to those of other places; the last entry wins over others with as many facts
    (Policy.prior_of). An entry with the same facts is replaced, and a note says where it rested on more runs. Raises
    UsageError for a file of another form, and for spreads that come from a mistake: no later run would contradict one
    that is far too large."""
    import yaml

    from canary_mlflow.gates.calibration import known_priors
    from canary_mlflow.policies import PRIORS_FILE, read_priors

    if odd := [f"{each.rule.name}: {problem}" for each in found.spreads for problem in each.odd]:
        raise UsageError(f"canary calibrate --write: found {odd[0]}; expected unchanged runs alone; nothing was stored")
    path = folder / PRIORS_FILE
    name = " ".join([found.policy.name, *found.when.values()])
    priors = read_priors(path) if path.exists() else {}
    old, new = priors.pop(name, {}), known_priors(name, dict(found.when), found.spreads).to_dict()
    priors[name] = new
    text = yaml.safe_dump({"priors": priors}, sort_keys=False, allow_unicode=True)
    head = "# Written by canary calibrate; policies read it in the folder they are used in.\n"
    write_whole(path, f"{head}{text}".encode())
    return path, fewer_degrees(old.get("rules", {}), new["rules"])


def fewer_degrees(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Which of the replaced spreads rested on more runs; '' if none did."""
    from canary_mlflow.gates.model.wording import listed

    gone = [
        f"{rule} {before[rule]['df']:g} → {now[rule]['df']:g}" if rule in now else f"{rule}, which these do not have"
        for rule in before
        if rule not in now or before[rule]["df"] > now[rule]["df"]
    ]
    return f"written over spreads of the same facts that had more degrees of freedom: {listed(gone)}" if gone else ""
