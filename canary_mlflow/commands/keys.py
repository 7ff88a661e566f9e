"""`canary keys`: what the ledger's rows are signed and checked with."""

from __future__ import annotations

from pathlib import Path

import click

from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.shown import echo

ledger_option = click.option(
    "--tracking-uri",
    "uris",
    multiple=True,
    metavar="URI",
    help="The database whose ledger records it; repeatable. Without it: MLFLOW_TRACKING_URI, or ./mlflow.db.",
)


@click.group(epilog=EXIT_CODES)
def keys() -> None:
    """Manage the keys that sign and check the ledger's rows."""


@keys.command("list")
@ledger_option
def list_keys(uris: tuple[str, ...]) -> None:
    """Show the folder, the key in use and the trusted public keys. Also which of them the ledger has ended."""
    from canary_mlflow.ledger.keys import PRIVATE, key_folder, load_signer, public_files

    folder = key_folder()
    used = load_signer(folder).key_id if (folder / PRIVATE).exists() else ""
    ended = ended_in(uris)
    echo(f"{folder}")
    for file in public_files(folder):
        said = "".join(f"  {one}" for one in ended.get(file.stem, ()))
        echo(f"  {file.stem}  {file}{'  (signs)' if file.stem == used else ''}{said}")
    if not used:
        echo("  no private key yet: the first row that is signed makes one")


def ended_in(uris: tuple[str, ...]) -> dict[str, list[str]]:
    """Key → what the ledgers at hand say about its end; a ledger that cannot be read is left out."""
    from canary_mlflow.errors import CanaryError
    from canary_mlflow.ledger.keys import trusted
    from canary_mlflow.registry.acts.keys import ledgers_at_hand
    from canary_mlflow.registry.guard.reader import reader_of

    found: dict[str, list[str]] = {}
    for uri in ledgers_at_hand(uris):
        try:
            known = reader_of(uri).keys(trusted())
        except CanaryError:
            if uris:
                raise
            continue
        for key_id, end in known.ends.items():
            found.setdefault(key_id, []).append(str(end))
    return found


@keys.command(epilog=EXIT_CODES)
@ledger_option
def rotate(uris: tuple[str, ...]) -> None:
    """Sign with a new key from now on. What the old key signed so far stays valid; what it signs later does not.

    The old key hands over to the new one in a signed row of each ledger at hand; in any other, before the first row
    that the new key signs there.
    """
    from canary_mlflow.ledger.keys import PRIVATE, key_folder
    from canary_mlflow.ledger.keys import rotate as renew
    from canary_mlflow.registry.acts.keys import ledgers_at_hand, record_rotation

    anew = not (key_folder() / PRIVATE).exists()
    echo(f"{renew(key_folder()).key_id} signs from now on.")
    found = ledgers_at_hand(uris)
    for uri in found:
        echo(f"  {record_rotation(uri, anew=anew)}")
    if not found:
        echo("  recorded nowhere: no ledger is at hand; each records it before the new key's first row")


@keys.command(epilog=EXIT_CODES)
@click.argument("key_id", metavar="ID")
@click.option("--reason", required=True, help="Why; kept in the ledger.")
@click.option("--from-row", "since", type=int, metavar="N", help="The first row of that key that is void.")
@ledger_option
def revoke(key_id: str, reason: str, since: int | None, uris: tuple[str, ...]) -> None:
    """End the key ID in a signed row. From then on, or from row N on, canary audit verify names its rows.

    Only a key that admitted ID, or that replaced it by rotation, can do that.
    """
    from canary_mlflow.registry.acts.keys import ledgers_at_hand
    from canary_mlflow.registry.acts.keys import revoke as end

    for uri in at_hand(ledgers_at_hand(uris)):
        row = end(uri, key_id, reason, since)
        echo(f"{key_id} ends with row {row.facts['from_row']}: recorded in row {row.seq} of the ledger.")


@keys.command(epilog=EXIT_CODES)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--to-sign", is_flag=True, help="Also admit it to sign in the ledger, below this account's key.")
@ledger_option
def trust(file: Path, to_sign: bool, uris: tuple[str, ...]) -> None:
    """Also trust the public key in FILE: a server's, or a colleague's."""
    from canary_mlflow.ledger.keys import key_folder, load_public, publish, raw_of
    from canary_mlflow.registry.acts.keys import ledgers_at_hand, let_in

    for key_id, key in load_public([file]).keys.items():
        echo(f"{publish(key, key_folder()).stem} is trusted from now on.")
        for uri in at_hand(ledgers_at_hand(uris)) if to_sign else ():
            row = let_in(uri, key_id, raw_of(key).hex())
            echo(f"  it may sign: recorded in row {row.seq} of the ledger")


def at_hand(found: list[str]) -> list[str]:
    """The ledgers' URIs. Raises UsageError if there is none."""
    from canary_mlflow.errors import UsageError

    if not found:
        raise UsageError("no ledger at hand; expected one to record it in; name its database: --tracking-uri URI")
    return found
