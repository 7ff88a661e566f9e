"""`canary schema`: what --json prints, as JSON Schema."""

from __future__ import annotations

import click

from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.shown import echo, echo_lines, json_text


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
