"""`canary env` and `canary doctor`: what is installed here, and whether it works."""

from __future__ import annotations

import click

from canary_mlflow.commands.shared import json_option, print_json, store_option
from canary_mlflow.edge import EXIT_CODES, OUTSIDE
from canary_mlflow.shown import echo, echo_lines, json_text, visible


@click.command()
@json_option
def env(as_json: bool) -> None:
    """Show the fingerprint that each run records."""
    from canary_mlflow.tracking.describing.fingerprint import environment, gpu_facts, hardware

    facts = {"hardware": hardware("cuda" if gpu_facts() else "cpu"), "environment": environment()}
    if as_json:
        print_json("environment", facts)
        return
    for group, values in facts.items():
        echo(group)
        for key in sorted(values):
            echo(f"  {key:<24} {values[key]}")


@click.command(epilog=EXIT_CODES)
@click.option("--fix", is_flag=True, help="Mark the runs of killed processes FAILED, remove their folders.")
@json_option
@store_option
@click.pass_context
def doctor(ctx: click.Context, fix: bool, as_json: bool, tracking_uri: str | None) -> None:
    """Check what works here. Plugin, store, packages, GPU, disk, forgotten runs; exits with 4 if something fails."""
    from canary_mlflow.doctor import examine
    from canary_mlflow.installation import Level, line

    findings = []
    for finding in examine(tracking_uri, fix=fix):
        findings.append(finding)
        text, style = line(finding)
        click.secho(visible(text), err=as_json, **style)
    failed = any(finding.level is Level.FAIL for finding in findings)
    if as_json:
        print_json("doctor", {"ok": not failed, "findings": [finding.to_dict() for finding in findings]})
    ctx.exit(OUTSIDE if failed else 0)


@click.command(epilog=EXIT_CODES)
@click.argument("name", required=False, metavar="[NAME]")
def schema(name: str | None) -> None:
    """Print the JSON schema of a command's --json output.

    NAME is a schema, also as NAME/VERSION, or a command. Without it: all schemas, with the commands that print them.
    Within a version keys are only added.
    """
    from canary_mlflow.schemas import PRINTED, read

    if name is not None:
        echo_lines(json_text(read(name)))
        return
    for one, (version, commands) in PRINTED.items():
        echo(f"{f'{one}/{version}':<18} {', '.join(f'canary {command}' for command in commands)}")
