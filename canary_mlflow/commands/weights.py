"""`canary verify-weights`: checks files against the seal of their version."""

from __future__ import annotations

from pathlib import Path

import click

from canary_mlflow.commands.shared import open_store, store_option
from canary_mlflow.shown import echo

CODES = """\b
Exit codes:
  0  every file is the one that was sealed, and there are no others
  1  a file differs, is missing, or was added
  2  wrong use, or no seal that holds
  4  the files or the registry cannot be read
"""


@click.command("verify-weights", epilog=CODES)
@click.argument("version")
@click.option("--dir", "folder", type=click.Path(path_type=Path), metavar="DIR", help="The files to check, elsewhere.")
@store_option
@click.pass_context
def verify_weights(ctx: click.Context, version: str, folder: Path | None, tracking_uri: str | None) -> None:
    """Check the files of VERSION against its seal.

    The seal lists the files of the version at registration. VERSION is models:/MODEL@champion or models:/MODEL/3.
    Without --dir the files are read from the registry's place.
    """
    from canary_mlflow.analysis import weights

    client = open_store(tracking_uri)
    found = weights.named_version(client, version)
    subject, sealed = f"{found.name} version {found.version}", weights.sealed_files(client, found)
    there = weights.files_of(client, found) if folder is None else weights.files_in(folder)
    if different := weights.differing(sealed, there):
        for what in different:
            echo(f"{subject}: {what} since it was sealed")
        ctx.exit(1)
    echo(f"{subject}: {len(sealed)} files, all as sealed")
