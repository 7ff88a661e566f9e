"""`canary power`: what the gate can see and how often it passes, per rule and number of runs, before any run is
made."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import print_json, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo, say

if TYPE_CHECKING:
    from canary_mlflow.reports.power import KnownSpread
    from gates import MetricRule, Policy
    from gates.model.policy import KnownPriors

SIZES = ((1, 1), (3, 1), (3, 3), (5, 1), (5, 3), (5, 5), (10, 5))
OF_TIERS = ((3, 3), (5, 5))
"""The numbers of runs of two sessions of the shipped tiers: smoke has three, perf and nightly five."""
MOST_RUNS = 50


@click.command(epilog=EXIT_CODES)
@click.option(
    "--policy", metavar="NAME|PATH", help="smoke, perf, nightly, or a YAML file. With --model, its own by default."
)
@click.option("--model", metavar="NAME", help="For candidates like its champion: its work, hardware, metrics and runs.")
@click.option("--rule", metavar="NAME", help="One rule in full: its chances for a true harm of 0 to 3 margins.")
@click.option("--runs", multiple=True, metavar="K+M", help="Baseline and candidate runs, such as 5+3; may be repeated.")
@click.option(
    "--spread",
    type=click.FloatRange(min=0, min_open=True),
    help="With --rule: the standard deviation between equal runs, on the scale of the rule's margin: a fraction (0.02 "
    "is 2 %) where it is one, else in the metric's unit.",
)
@click.option(
    "--fact",
    multiple=True,
    metavar="KEY=VALUE",
    help="What the runs are: backend=cuda, algo=grpo. Without it: hardware as this machine's.",
)
@click.option(
    "--png",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --rule: write the curves into this file (PNG, SVG or PDF).",
)
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout.")
@store_option
def power(
    policy: str | None,
    model: str | None,
    rule: str | None,
    runs: tuple[str, ...],
    spread: float | None,
    fact: tuple[str, ...],
    png: Path | None,
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Say which changes the gate can see.

    For every rule that decides on this machine: the smallest harm that it blocks 80 times in 100, and how often an
    unchanged candidate passes it; then how often it passes all rules. The spread is the one that `canary calibrate`
    stored for such runs, else the shipped one.
    """
    from canary_mlflow.policies import load_policy

    if png is not None:
        check_place(png)
    if rule is None and (spread is not None or png is not None):
        option = "--spread" if png is None else "--png"
        raise UsageError(f"{option}: found no rule, and it is for one; expected --rule NAME, such as step_time; add it")
    sizes, given = read_sizes(runs), read_facts(fact)
    champion = None if model is None else find_champion(model, policy, tracking_uri)
    if champion is None and policy is None:
        raise UsageError("power: found neither --policy nor --model; expected one of them; add --policy smoke")
    asked = load_policy(str(policy)) if champion is None else champion.policy
    facts = {**(machine(given) if champion is None else champion.facts), **known_facts(asked, given)}
    if rule is None:
        usual = OF_TIERS if champion is None else tuple((champion.runs, size[1]) for size in OF_TIERS)
        subject = "" if champion is None else champion.label
        show_all(asked, facts, given, sizes or usual, subject, as_json=as_json)
    else:
        show_one(asked, rule, facts, sizes or SIZES, spread, png, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class Champion:
    """What a model's candidates will be judged against. `runs`: the champion's number of runs. `policy`: the one that
    judges them."""

    label: str
    runs: int
    facts: Mapping[str, str]
    policy: Policy


def find_champion(model: str, policy: str | None, tracking_uri: str | None) -> Champion:
    """The champion of a model. Raises NoSuchModel, StoreError, and UsageError if it has none, or none with runs."""
    from canary_mlflow.registry.evidence import aliased, version_side
    from canary_mlflow.registry.policies.asked import policy_for
    from canary_mlflow.tracking.stores.store import existing_store
    from gates.model.sides import candidate_side, conditions

    client = existing_store(tracking_uri)
    number = aliased(client, model, "champion")
    found = version_side(client, model, number)
    side = candidate_side(found.evidence.runs)
    if not side.evidence:
        raise UsageError(f"{found.label}: found no runs to go by; expected a champion with its session; use --policy")
    return Champion(
        label=f"candidates like {found.label}",
        runs=len(side.evidence),
        facts=conditions(side, side),
        policy=policy_for(client, model, number, policy),
    )


def show_all(
    asked: Policy,
    facts: Mapping[str, str],
    given: Mapping[str, str],
    sizes: Sequence[tuple[int, int]],
    subject: str,
    *,
    as_json: bool,
) -> None:
    """Print the table of all rules that decide."""
    from canary_mlflow.reports.power_table import Row, Table, as_dict, lines
    from gates.stats.power import chances

    resolved = asked.resolve({**recorded(facts), **facts})
    rows = []
    for rule in resolved.rules:
        if not rule.blocks or facts.get(rule.metric) == "absent":
            continue
        known = expected(asked, resolved, rule)
        reached = tuple(chances(resolved, rule, known.prior, size) for size in sizes)
        rows.append(Row(rule=rule, spread=known, reached=reached))
    stored = dict.fromkeys(note for row in rows for note in row.spread.notes)
    usual = () if "algo" in facts else ("for trainings on examples (SFT, DPO, KTO); --fact algo=grpo asks for RL",)
    named = {**{key: facts[key] for key in ("backend", "algo") if key in facts}, **given}
    here = not subject and "backend" not in given
    table = Table(policy=resolved, subject=subject, facts=named, here=here, rows=tuple(rows), notes=(*usual, *stored))
    if as_json:
        print_json("power-table", as_dict(table))
        return
    for line in lines(table):
        echo(line)


def show_one(
    asked: Policy,
    rule: str,
    facts: Mapping[str, str],
    sizes: Sequence[tuple[int, int]],
    spread: float | None,
    png: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print one rule's chances of PASS and BLOCK by true harm."""
    from canary_mlflow.reports.power import KnownSpread, as_dict, lines, title
    from gates.model.priors import SHIPPED_DF, Prior
    from gates.stats.power import chances

    rules, notes = deciding(asked, rule, facts)
    chosen = find_rule(rules, rule)
    if spread is None:
        known = expected(asked, rules, chosen)
    else:
        known = KnownSpread(prior=Prior(sd=read_spread(spread, chosen), df=SHIPPED_DF, kind="given"))
    known = replace(known, notes=(*notes, *known.notes))
    table = [chances(rules, chosen, known.prior, size) for size in sizes]
    if png is not None:
        from canary_mlflow.reports.power_picture import draw

        try:
            draw(table, title(rules, chosen, known), png)
        except OSError as error:
            raise UsageError(f"--png {png}: cannot be written ({error.strerror}); name another place") from error
        say(f"wrote {png}")
    if as_json:
        print_json("power", as_dict(table, rules, chosen, known))
        return
    for line in lines(table, rules, chosen, known):
        echo(line)


def machine(given: Mapping[str, str]) -> dict[str, str]:
    """The hardware facts of runs made here, as in their tags; only the given backend if that is another machine's."""
    from canary_mlflow.tracking.describing.fingerprint import hardware
    from canary_mlflow.tracking.describing.gpus import driver, visible

    with driver() as nvml:
        backend = "cuda" if nvml is not None and visible(nvml) else "cpu"
    if given.get("backend", backend) != backend or "device" in given:
        return {"backend": given.get("backend", backend)}
    return hardware(backend)


def recorded(facts: Mapping[str, str], besides: str = "") -> dict[str, str]:
    """What runs with these facts record: every metric except a held-out reward, unless they learn from rewards, and the
    iterations, which only PPO has; plus `besides`, the rule in question."""
    from gates.model.metrics import METRICS
    from gates.model.paradigm import Paradigm, paradigm_of

    if METRICS.keys() <= facts.keys():  # a champion's facts, which already tell
        return {}
    ppo, paradigm = facts.get("algo", "").lower() == "ppo", paradigm_of(facts.get("algo", ""), ())
    without = set() if paradigm is Paradigm.REINFORCEMENT else {"eval_reward"}
    without |= set() if ppo else {name for name, metric in METRICS.items() if metric.of_iterations}
    return {**dict.fromkeys(METRICS.keys() - (without - {besides}), "recorded"), "paradigm": paradigm}


def deciding(asked: Policy, rule: str, facts: Mapping[str, str]) -> tuple[Policy, tuple[str, ...]]:
    """The policy for these facts, assuming whatever must be recorded, or absent, for the rule to decide; if it takes
    other facts to decide, a sentence names them."""
    from gates.model.metrics import METRICS
    from gates.model.rules import Role

    there = recorded(facts, rule)
    rules, needs = asked.resolve({**there, **facts}), []
    for overlay in asked.overlays:
        if find_rule(rules, rule).role is Role.GATE:
            return rules, ()
        if overlay.rules.get(rule, {}).get("role") is Role.GATE:
            besides = {key: "absent" if "absent" in values else values[0] for key, values in overlay.when.items()}
            metrics = {key: value for key, value in besides.items() if key in METRICS}
            trial = asked.resolve({**there, **metrics, **facts})
            if find_rule(trial, rule).role is Role.GATE:
                return trial, ()
            needs.append(" ".join(f"--fact {key}={value}" for key, value in besides.items() if key not in METRICS))
    if any(needs):
        return rules, (f"{rule} decides with {' or '.join(needs)}",)
    return rules, elsewhere(asked, rule, rules, {**there, **facts})


def elsewhere(asked: Policy, rule: str, resolved: Policy, facts: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence on a rule that decides only on other hardware."""
    if find_rule(resolved, rule).blocks:
        return ()
    for backend in ("cuda", "cpu"):
        if find_rule(asked.resolve({**facts, "backend": backend}), rule).blocks:
            return (
                f"{rule} does not decide with backend={facts.get('backend')}; it does with --fact backend={backend}",
            )
    return ()


def expected(asked: Policy, resolved: Policy, rule: MetricRule) -> KnownSpread:
    """The spread that the policy expects for its facts, and where spreads for other facts are stored."""
    from canary_mlflow.reports.power import KnownSpread

    prior = resolved.prior_of(rule)
    entry = next((known.name for known in resolved.priors if known.rules.get(rule.name) is prior), "")
    notes = () if entry or not asked.priors else (other_entries(asked, rule),)
    return KnownSpread(prior=prior, entry=entry, notes=notes)


def other_entries(asked: Policy, rule: MetricRule) -> str:
    """The stored spreads of a rule, each with the options that would choose it."""
    from canary_mlflow.policies import PRIORS_FILE
    from gates.model.wording import listed

    where = PRIORS_FILE if Path(PRIORS_FILE).is_file() else f"policy {asked.name}"
    fits = [known for known in asked.priors if rule.name in known.rules and known.rules[rule.name].fits(rule)]
    if not fits:
        return f"{where} has no spread of {rule.name}"
    return f"{where} has spreads of {rule.name} for other facts: {listed([f'{k.name} ({options(k)})' for k in fits])}"


def options(known: KnownPriors) -> str:
    """The command-line options with which the entry applies."""
    return " ".join(f"--fact {shlex.quote(f'{key}={values[0]}')}" for key, values in known.when.items())


def known_facts(asked: Policy, facts: Mapping[str, str]) -> Mapping[str, str]:
    """The facts. Raises UsageError for one that nothing in the policy looks at: it would silently change nothing."""
    from gates.model.metrics import METRICS
    from gates.notes import USUAL_FACTS

    looked_at = [overlay.when for overlay in asked.overlays] + [known.when for known in asked.priors]
    read = {key for when in looked_at for key in when} | USUAL_FACTS
    if odd := sorted(facts.keys() - read - METRICS.keys()):
        raise UsageError(
            f"--fact: found {odd[0]}, which policy {asked.name} never looks at; expected one of "
            f"{', '.join(sorted(read - METRICS.keys()))}, or a metric"
        )
    return facts


def read_spread(value: float, rule: MetricRule) -> float:
    """A spread such as a policy may state. Raises UsageError."""
    from gates import PolicyError
    from gates.parser import RULE_KEYS

    if value > 1 and rule.scale == "log":
        raise UsageError(
            f"--spread: found {value:g}, which is {100 * value:g} %; expected a share; write one such as 0.02"
        )
    try:
        return float(RULE_KEYS["prior"]("--spread", value))
    except PolicyError as error:
        raise UsageError(f"{error}; write one such as 0.02") from error


def check_place(path: Path) -> None:
    """Raise UsageError if no picture can be written there, before spending seconds on the chances."""
    from canary_mlflow.reports.power_picture import drawable

    if not drawable(path):
        found = f"a file that ends in {path.suffix}" if path.suffix else "a file without an ending"
        raise UsageError(f"--png {path}: found {found}; expected a file that ends in .png, .svg or .pdf; rename it")
    if not path.parent.is_dir():
        raise UsageError(
            f"--png {path}: found no folder {path.parent}; expected one that is there; make it, or name another"
        )


def read_sizes(words: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """K+M words as numbers of runs. Raises UsageError."""
    sizes = []
    for word in words:
        match = re.fullmatch(r"([0-9]{1,3})\+([0-9]{1,3})", word)
        size = (int(match[1]), int(match[2])) if match else (0, 0)
        if not (min(size) > 0 and max(size) <= MOST_RUNS):
            raise UsageError(
                f"--runs: found {word!r}; expected baseline and candidate runs, 1 to {MOST_RUNS} each, such as 5+3"
            )
        sizes.append(size)
    return tuple(sizes)


def read_facts(words: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE words as facts."""
    pairs = [word.partition("=") for word in words]
    for key, sign, value in pairs:
        if not (key and sign and value):
            raise UsageError(f"--fact: found {key + sign + value!r}; expected KEY=VALUE, such as backend=cuda")
    return {key: value for key, _, value in pairs}


def find_rule(policy: Policy, name: str) -> MetricRule:
    """The rule of that name."""
    found = next((rule for rule in policy.rules if rule.name == name), None)
    if found is None:
        valid = ", ".join(rule.name for rule in policy.rules)
        raise UsageError(f"--rule: found {name!r}; policy {policy.name} has {valid}")
    return found
