"""`canary override`, `canary rollback`, `canary keys`: acts that leave a signed row, and the keys for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import open_store, print_json, store_option
from canary_mlflow.edge import EXIT_CODES

if TYPE_CHECKING:
    from canary_mlflow.registry.act import Act

json_option = click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout; the sentence goes to stderr.")
reason_option = click.option("--reason", required=True, help="Why; kept in the ledger and on the version.")


@click.command(epilog=EXIT_CODES)
@click.argument("model")
@click.argument("version")
@reason_option
@click.option("--alias", default="champion", show_default=True, help="The guarded alias to give.")
@json_option
@store_option
def override(model: str, version: str, reason: str, alias: str, as_json: bool, tracking_uri: str | None) -> None:
    """Give VERSION of MODEL a guarded alias whatever its verdict is, with your name and reason on record."""
    from canary_mlflow.registry.acts import override as give

    show(give(open_store(tracking_uri), model, version, reason, alias=alias), as_json)


@click.command(epilog=EXIT_CODES)
@click.argument("model")
@reason_option
@json_option
@store_option
def rollback(model: str, reason: str, as_json: bool, tracking_uri: str | None) -> None:
    """Return MODEL to the champion before this one, with your name and reason on record."""
    from canary_mlflow.registry.rollback import rollback as go_back

    show(go_back(open_store(tracking_uri), model, reason), as_json)


def show(act: Act, as_json: bool) -> None:
    """What has been done."""
    if as_json:
        print_json(act.to_dict())
    before = f" (before: version {act.champion_before})" if act.champion_before else ""
    click.echo(
        f"Version {act.version} of {act.model} is {act.alias} now{before}: {act.word} by {act.who}, in the ledger.",
        err=as_json,
    )


@click.group(epilog=EXIT_CODES)
def keys() -> None:
    """The keys that the ledger's rows are signed and checked with."""


@keys.command("list")
def list_keys() -> None:
    """Show the folder, the key in use and the public keys that are trusted."""
    from canary_mlflow.ledger.keys import PRIVATE, key_folder, load_signer, public_files

    folder = key_folder()
    used = load_signer(folder).key_id if (folder / PRIVATE).exists() else ""
    click.echo(f"{folder}")
    for file in public_files(folder):
        click.echo(f"  {file.stem}  {file}{'  (signs)' if file.stem == used else ''}")
    if not used:
        click.echo("  no private key yet: the first row that is signed makes one")


@keys.command()
def rotate() -> None:
    """Sign with a new key from now on; what the old one signed stays good."""
    from canary_mlflow.ledger.keys import key_folder
    from canary_mlflow.ledger.keys import rotate as renew

    click.echo(f"{renew(key_folder()).key_id} signs from now on.")


@keys.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def trust(file: Path) -> None:
    """Trust the public key in FILE as well: a server's, or a colleague's."""
    from canary_mlflow.ledger.keys import key_folder, load_public, publish

    for key in load_public([file]).keys.values():
        click.echo(f"{publish(key, key_folder()).stem} is trusted from now on.")
