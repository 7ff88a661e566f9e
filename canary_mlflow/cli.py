"""The canary command: run, gate, ab, compare, judge, replay, import, calibrate, power, bless, deliver, env, doctor."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

import click

from canary_mlflow.commands.ab import ab
from canary_mlflow.commands.audit import audit
from canary_mlflow.commands.calibrate import calibrate
from canary_mlflow.commands.db import db
from canary_mlflow.commands.deliver import deliver
from canary_mlflow.commands.guarding import keys, override, rollback
from canary_mlflow.commands.import_ import import_
from canary_mlflow.commands.judge import judge
from canary_mlflow.commands.power import power
from canary_mlflow.commands.replay import replay
from canary_mlflow.commands.report import report
from canary_mlflow.commands.ui import ui
from canary_mlflow.edge import EXIT_CODES, OUTSIDE, Edge, reader_left
from canary_mlflow.errors import StoreError, UsageError

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.reports.decision import Decision

# Everything heavy is imported inside the commands: `canary --help` answers at once.

TRAINING_STACK = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "hydra")


def show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print the installed version; a checkout that is not installed has none."""
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("canary-mlflow")
    except PackageNotFoundError:
        found = "(not installed)"
    click.echo(f"canary {found}")
    ctx.exit()


store_option = click.option(
    "--tracking-uri",
    envvar="MLFLOW_TRACKING_URI",
    show_envvar=True,
    metavar="URI",
    help="The MLflow store. Without it: sqlite:///mlflow.db in the working folder.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout; the report goes to stderr.")
policy_option = click.option(
    "--policy",
    metavar="NAME|PATH",
    help="A name of conf/gate/ or a YAML file. Without it: the candidate's own tier.",
)


@click.group(cls=Edge, name="canary", epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version.",
)
def canary() -> None:
    """Train canaries, judge what they record, guard the champion of MLflow's model registry."""


@canary.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=EXIT_CODES,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OVERRIDES]...")
@store_option
@click.pass_context
def run(ctx: click.Context, arguments: tuple[str, ...], tracking_uri: str | None) -> None:
    """Train, record, register and gate: the same as `python -m training`.

    Takes Hydra's overrides, for example: canary run tier=smoke algo=sft seed=7
    """
    if set(arguments) & {"-h", "--help"}:
        click.echo(ctx.get_help())
        click.echo("\nAll configuration keys: canary run --cfg job")
        return
    require_training_stack()
    if tracking_uri:
        os.environ["MLFLOW_TRACKING_URI"] = tracking_uri
    sys.stdout.flush()
    # Replacing this process hands signals, progress bar and exit code through untouched.
    os.execv(sys.executable, [sys.executable, "-m", "training", *arguments])


def require_training_stack() -> None:
    """Raise UsageError unless the [train] extra is there; looks without importing."""
    from importlib.util import find_spec

    missing = [name for name in TRAINING_STACK if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"training stack: {', '.join(missing)} not installed; `canary run` needs the [train] extra; "
            "pip install 'canary-mlflow[train]'"
        )


@canary.command(epilog=EXIT_CODES)
@click.argument("model")
@click.argument("version")
@policy_option
@click.option("--top-up", is_flag=True, help="Make the runs that are missing, look by look, until they decide.")
@click.option("--dry-run", is_flag=True, help="Judge, but write nothing, move nothing, make no runs.")
@json_option
@store_option
@click.pass_context
def gate(
    ctx: click.Context,
    model: str,
    version: str,
    policy: str | None,
    top_up: bool,
    dry_run: bool,
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Judge VERSION of MODEL against the champion; a PASS makes it champion.

    With --top-up by the policy's plan of looks: runs are added to the version's session through MLflow Projects until
    the verdict is PASS or BLOCK, or no affordable number would decide. With --dry-run it says what would be made.
    """
    from canary_mlflow.registry.evidence import tier_of
    from canary_mlflow.registry.gatekeeper import gate as judge_version

    client = open_store(tracking_uri)
    chosen = choose_policy(policy, tier_of(client, model, version) if not policy else "", f"{model}/{version}")
    if top_up or chosen.top_up:
        from canary_mlflow.launching.top_up import top_up as carry_out

        if not dry_run:
            require_training_stack()
        decision = carry_out(client, model, version, chosen, say, dry_run=dry_run)
    else:
        decision = judge_version(client, model, version, chosen, dry_run=dry_run)
    print_decision(decision, as_json)
    ctx.exit(decision.exit_code)


@canary.command(epilog=EXIT_CODES)
@click.argument("baseline")
@click.argument("candidate")
@policy_option
@click.option("--exit-code", is_flag=True, help="Exit with the verdict's code instead of 0.")
@json_option
@store_option
@click.pass_context
def compare(
    ctx: click.Context,
    baseline: str,
    candidate: str,
    policy: str | None,
    exit_code: bool,
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Put CANDIDATE beside BASELINE; read-only.

    Each is a run id, a session id, MODEL/VERSION, MODEL@champion or models:/MODEL/VERSION. Exits with 0 whatever the
    comparison shows, unless --exit-code is given.
    """
    from canary_mlflow.registry.evidence import find_evidence
    from canary_mlflow.registry.gatekeeper import compare as put_beside

    client = open_store(tracking_uri)
    left, right = find_evidence(client, baseline), find_evidence(client, candidate)
    chosen = choose_policy(policy, right.tier or left.tier, candidate)
    decision = put_beside(client, chosen, left.evidence, right.evidence, (left.label, right.label))
    print_decision(decision, as_json)
    ctx.exit(decision.exit_code if exit_code else 0)


@canary.command(epilog=EXIT_CODES)
@click.argument("model")
@click.argument("version")
@click.option("--reason", required=True, help="Why it may be champion; kept on the version.")
@click.option("--despite-block", is_flag=True, help="Also when the gate has blocked it.")
@json_option
@store_option
def bless(model: str, version: str, reason: str, despite_block: bool, as_json: bool, tracking_uri: str | None) -> None:
    """Make VERSION of MODEL champion by hand, with your name and reason on record."""
    from canary_mlflow.registry.acts import bless as make_champion

    blessing = make_champion(open_store(tracking_uri), model, version, reason, despite_block=despite_block)
    if as_json:
        print_json(blessing.to_dict())
    before = f" (before: version {blessing.champion_before})" if blessing.champion_before else ""
    click.echo(
        f"Version {blessing.version} of {model} is champion now{before}: blessed by {blessing.who}.",
        err=as_json,
    )


@canary.command()
@json_option
def env(as_json: bool) -> None:
    """Show the fingerprint that each run records: packages, hardware, git."""
    from canary_mlflow.tracking.fingerprint import environment, gpu_facts, hardware

    facts = {"hardware": hardware("cuda" if gpu_facts() else "cpu"), "environment": environment()}
    if as_json:
        print_json(facts)
        return
    for group, values in facts.items():
        click.echo(group)
        for key in sorted(values):
            click.echo(f"  {key:<24} {values[key]}")


@canary.command(epilog=EXIT_CODES)
@json_option
@store_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, tracking_uri: str | None) -> None:
    """Check what works here: plugin, store, packages, GPU, disk, forgotten runs. Exits with 4 if something fails."""
    from canary_mlflow.doctor import examine
    from canary_mlflow.findings import Level, line

    findings = []
    for finding in examine(tracking_uri):
        findings.append(finding)
        text, style = line(finding)
        click.secho(text, err=as_json, **style)
    failed = any(finding.level is Level.FAIL for finding in findings)
    if as_json:
        print_json({"ok": not failed, "findings": [finding.to_dict() for finding in findings]})
    ctx.exit(OUTSIDE if failed else 0)


canary.add_command(replay)


def open_store(uri: str | None) -> MlflowClient:
    """The client of a store that is there; raises StoreError otherwise, and makes none to look into."""
    from canary_mlflow.tracking.store import prepare_store, resolve, sqlite_file

    file = sqlite_file(resolve(uri))
    if file is not None and not file.exists():
        raise StoreError(
            f"{file}: no store there; expected one that a run has made; `canary run` makes it, "
            "--tracking-uri names another"
        )
    return prepare_store(uri)


def choose_policy(named: str | None, tier: str, subject: str) -> Any:
    """The policy that was asked for, else the one of the tier."""
    from canary_mlflow.policies import load_policy

    if not named and not tier:
        raise UsageError(
            f"{subject}: its runs carry no tier; expected --policy to choose the rules; add --policy smoke"
        )
    return load_policy(named or tier)


def say(line: str) -> None:
    """What goes on, for people."""
    click.echo(f"canary: {line}", err=True)


def print_decision(decision: Decision, as_json: bool) -> None:
    """The report for people on stdout; with --json it moves to stderr."""
    from canary_mlflow.reports import json, text

    try:
        if as_json:
            click.echo(json.render(decision), nl=False)
        text.show(decision, sys.stderr if as_json else sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone (`… | head`); what was decided stands, and so does its exit code
        reader_left()


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


canary.add_command(ab)
canary.add_command(deliver)
canary.add_command(import_)
canary.add_command(judge)
canary.add_command(calibrate)
canary.add_command(power)
canary.add_command(report)
canary.add_command(audit)
canary.add_command(db)
canary.add_command(keys)
canary.add_command(override)
canary.add_command(rollback)
canary.add_command(ui)


def main() -> None:
    """The command's way in. A bug ends with 4: Python's own 1 would say BLOCK."""
    try:
        canary(prog_name="canary")
    except Exception:  # noqa: BLE001  # the outermost frame: shown whole, with the right exit code
        traceback.print_exc()
        sys.exit(OUTSIDE)


if __name__ == "__main__":
    main()
