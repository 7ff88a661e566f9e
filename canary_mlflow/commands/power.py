"""`canary power`: the chance of BLOCK and PASS per true effect and number of runs, before any run is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from canary_mlflow.commands.shared import print_json
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.errors import UsageError, one_line

if TYPE_CHECKING:
    from gates import MetricRule, Policy
    from gates.calibration import Power

EFFECTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
CURVE = tuple(step / 20 for step in range(61))
SIZES = ((1, 1), (3, 1), (3, 3), (5, 1), (5, 3), (5, 5), (10, 5))


@click.command(epilog=EXIT_CODES)
@click.option("--policy", required=True, metavar="NAME|PATH", help="smoke, perf, nightly, or a YAML file.")
@click.option("--rule", default="step_time", show_default=True, help="A rule of the policy.")
@click.option(
    "--spread", type=click.FloatRange(min=0, min_open=True), help="Between equal runs, on the margin's scale."
)
@click.option("--fact", multiple=True, metavar="KEY=VALUE", help="Facts that choose a stored spread: backend=cuda.")
@click.option(
    "--png", type=click.Path(dir_okay=False, path_type=Path), help="Write the curves into this file (PNG, SVG or PDF)."
)
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout.")
def power(policy: str, rule: str, spread: float | None, fact: tuple[str, ...], png: Path | None, as_json: bool) -> None:
    """Say how likely BLOCK and PASS are for a true harm of 0 to 3 margins.

    Without --spread: the one that `canary calibrate` stored for these facts, else the shipped one.
    """
    from canary_mlflow.policies import load_policy
    from gates.calibration import harm_margin
    from gates.calibration import power as chances
    from gates.policy import Worse

    rules = load_policy(policy).resolve(read_facts(fact))
    chosen = find_rule(rules, rule)
    prior = rules.prior_of(chosen)
    sd, kind = (prior.sd, prior.kind) if spread is None else (read_spread(spread), "given")
    title = f"{rules.name}, {rule}: spread {sd:g} ({kind})"
    two_sided = chosen.worse is Worse.BOTH
    find = partial(chances, rules, harm_margin(chosen), sd, SIZES, role=chosen.role, two_sided=two_sided)
    table = find(EFFECTS)
    if png is not None:
        picture(png, find(CURVE), title)
    if as_json:
        rows: list[dict[str, Any]] = [vars(each) for each in table]
        about = {"policy": rules.name, "rule": rule, "role": chosen.role.value, "spread": sd, "spread_kind": kind}
        print_json({**about, "chances": rows})
        return
    for line in lines(table, f"{title}, margin {chosen.margin:g}", chosen):
        click.echo(line)


def lines(table: Sequence[Power], title: str, rule: MetricRule) -> Iterator[str]:
    """The table for people, after a line on what the policy makes of a rule that does not decide."""
    yield f"{title}; chance of BLOCK / PASS in %"
    if rule.role == "advisory":
        yield f"{rule.name} is advisory in this policy: it never blocks"
    if rule.role == "ignore":
        yield f"{rule.name} is ignored in this policy: it never blocks and never passes"
    yield f"  {'runs (k+m)':>10s}" + "".join(f"{effect:>12g}x" for effect in EFFECTS) + "   (true harm, in margins)"
    for size in SIZES:
        mine = [each for each in table if (each.baseline_runs, each.candidate_runs) == size]
        cells = "".join(f"{f'{100 * each.block:.0f} / {100 * each.passed:.0f}':>13s}" for each in mine)
        yield f"  {size[0]:>8d}+{size[1]}{cells}"


def read_spread(value: float) -> float:
    """A spread such as a policy may state. Raises UsageError."""
    from gates import PolicyError
    from gates.rule_parser import RULE_KEYS

    try:
        return float(RULE_KEYS["prior"]("--spread", value))
    except PolicyError as error:
        raise UsageError(f"{error}; write one such as 0.02") from error


def picture(path: Path, curve: Sequence[Power], title: str) -> None:
    """Draw it. Raises UsageError for a file of a kind that cannot be drawn."""
    from canary_mlflow.reports.power_picture import draw

    try:
        draw(curve, title, path)
    except ValueError as error:
        raise UsageError(f"--png {path}: {one_line(error)}; expected a file that ends in .png, .svg or .pdf") from error
    click.echo(f"canary: wrote {path}", err=True)


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
