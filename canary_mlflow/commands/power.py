"""`canary power`: what the gate can see and how often it passes, per rule and number of runs, before any run is
made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import key_values, print_json, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo

if TYPE_CHECKING:
    from canary_mlflow.gates import MetricRule, Policy
    from canary_mlflow.reports.power import Row

OF_TIERS = ((3, 3), (5, 5))
"""The numbers of runs of two sessions of the shipped tiers: smoke has three, perf and nightly five."""
MOST_RUNS = 50


@click.command(epilog=EXIT_CODES)
@click.option(
    "--policy", metavar="NAME|PATH", help="smoke, perf, nightly, or a YAML file. With --model, its own by default."
)
@click.option("--model", metavar="NAME", help="For candidates like its champion: its work, hardware, metrics and runs.")
@click.option("--runs", multiple=True, metavar="K+M", help="Baseline and candidate runs, such as 5+3; may be repeated.")
@click.option(
    "--fact",
    multiple=True,
    metavar="KEY=VALUE",
    help="What the runs are: backend=cuda, algo=grpo. Without it: hardware as this machine's.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout.")
@store_option
def power(
    policy: str | None,
    model: str | None,
    runs: tuple[str, ...],
    fact: tuple[str, ...],
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Say which changes the gate can see.

    For every rule that decides on this machine: the smallest harm that it blocks 80 times in 100, and how often an
    unchanged candidate passes it; then how often it passes all rules. The spread is the one that `canary calibrate`
    stored for such runs, else the shipped one.
    """
    from canary_mlflow.policies import load_policy
    from canary_mlflow.reports.power import Table, as_dict, lines

    sizes, given = read_sizes(runs), key_values("--fact", fact, "backend=cuda")
    champion = None if model is None else find_champion(model, policy, tracking_uri)
    if champion is None and policy is None:
        raise UsageError("power: found neither --policy nor --model; expected one of them; add --policy smoke")
    asked = load_policy(str(policy)) if champion is None else champion.policy
    facts = {**(machine(given) if champion is None else champion.facts), **known_facts(asked, given)}
    usual = OF_TIERS if champion is None else tuple((champion.runs, size[1]) for size in OF_TIERS)
    rules = asked.resolve({**recorded(facts), **facts})
    decide = [rule for rule in rules.rules if rule.blocks and facts.get(rule.metric) != "absent"]
    notes = () if "algo" in facts else ("for trainings on examples (SFT, DPO, KTO); --fact algo=grpo asks for RL",)
    table = Table(
        policy=rules,
        subject="" if champion is None else champion.label,
        facts={**{key: facts[key] for key in ("backend", "algo") if key in facts}, **given},
        here=champion is None and "backend" not in given,
        rows=tuple(row_of(rules, rule, sizes or usual) for rule in decide),
        notes=notes,
    )
    if as_json:
        print_json("power-table", as_dict(table))
        return
    for line in lines(table):
        echo(line)


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
    from canary_mlflow.gates.model.sides import candidate_side, conditions
    from canary_mlflow.registry.policies.asked import policy_for
    from canary_mlflow.resolve import find_named, version_side
    from canary_mlflow.tracking.stores.store import existing_store

    client = existing_store(tracking_uri)
    champion = find_named(client, f"{model}@champion")
    assert champion is not None
    found = version_side(client, champion)
    side = candidate_side(found.evidence.runs)
    if not side.evidence:
        raise UsageError(f"{found.label}: found no runs to go by; expected a champion with its session; use --policy")
    return Champion(
        label=f"candidates like {found.label}",
        runs=len(side.evidence),
        facts=conditions(side, side),
        policy=policy_for(client, model, str(champion.version), policy),
    )


def machine(given: Mapping[str, str]) -> dict[str, str]:
    """The hardware facts of runs made here, as in their tags; only the given backend if that is another machine's."""
    from canary_mlflow.tracking.describing.fingerprint import hardware
    from canary_mlflow.tracking.describing.gpus import driver, visible

    with driver() as nvml:
        backend = "cuda" if nvml is not None and visible(nvml) else "cpu"
    if given.get("backend", backend) != backend or "device" in given:
        return {"backend": given.get("backend", backend)}
    return hardware(backend)


def recorded(facts: Mapping[str, str]) -> dict[str, str]:
    """What runs with these facts record: every metric except a held-out reward, unless they learn from rewards, and the
    iterations, which only PPO has."""
    from canary_mlflow.gates.model.metrics import METRICS
    from canary_mlflow.gates.model.paradigm import Paradigm, paradigm_of

    if METRICS.keys() <= facts.keys():  # a champion's facts, which already tell
        return {}
    ppo, paradigm = facts.get("algo", "").lower() == "ppo", paradigm_of(facts.get("algo", ""), ())
    without = set() if paradigm is Paradigm.REINFORCEMENT else {"eval_reward"}
    without |= set() if ppo else {name for name, metric in METRICS.items() if metric.of_iterations}
    return {**dict.fromkeys(METRICS.keys() - without, "recorded"), "paradigm": paradigm}


def row_of(rules: Policy, rule: MetricRule, sizes: tuple[tuple[int, int], ...]) -> Row:
    """What a rule can see with each number of runs, at the spread that the policy expects."""
    from canary_mlflow.gates.stats.power import chances
    from canary_mlflow.reports.power import Row

    prior = rules.prior_of(rule)
    return Row(
        rule=rule,
        prior=prior,
        entry=next((known.name for known in rules.priors if known.rules.get(rule.name) is prior), ""),
        reached=tuple(chances(rules, rule, prior, size) for size in sizes),
    )


def known_facts(asked: Policy, facts: Mapping[str, str]) -> Mapping[str, str]:
    """The facts. Raises UsageError for one that nothing in the policy looks at: it would silently change nothing."""
    from canary_mlflow.gates.model.metrics import METRICS
    from canary_mlflow.gates.notes import USUAL_FACTS

    looked_at = [overlay.when for overlay in asked.overlays] + [known.when for known in asked.priors]
    read = {key for when in looked_at for key in when} | USUAL_FACTS
    if odd := sorted(facts.keys() - read - METRICS.keys()):
        raise UsageError(
            f"--fact: found {odd[0]}, which policy {asked.name} never looks at; expected one of "
            f"{', '.join(sorted(read - METRICS.keys()))}, or a metric"
        )
    return facts


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
