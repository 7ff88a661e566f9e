"""`canary keys`: what the ledger's rows are signed and checked with."""

from __future__ import annotations

from pathlib import Path

import click

from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.shown import echo


@click.group(epilog=EXIT_CODES)
def keys() -> None:
    """The keys that the ledger's rows are signed and checked with."""


@keys.command("list")
def list_keys() -> None:
    """Show the folder, the key in use and the public keys that are trusted."""
    from canary_mlflow.ledger.keys import PRIVATE, key_folder, load_signer, public_files

    folder = key_folder()
    used = load_signer(folder).key_id if (folder / PRIVATE).exists() else ""
    echo(f"{folder}")
    for file in public_files(folder):
        echo(f"  {file.stem}  {file}{'  (signs)' if file.stem == used else ''}")
    if not used:
        echo("  no private key yet: the first row that is signed makes one")


@keys.command()
def rotate() -> None:
    """Sign with a new key from now on; what the old one signed stays good."""
    from canary_mlflow.ledger.keys import key_folder
    from canary_mlflow.ledger.keys import rotate as renew

    echo(f"{renew(key_folder()).key_id} signs from now on.")


@keys.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def trust(file: Path) -> None:
    """Trust the public key in FILE as well: a server's, or a colleague's."""
    from canary_mlflow.ledger.keys import key_folder, load_public, publish

    for key in load_public([file]).keys.values():
        echo(f"{publish(key, key_folder()).stem} is trusted from now on.")
