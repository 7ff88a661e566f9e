"""`canary audit`: read the ledger, and check it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import open_store, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.shown import echo
from canary_mlflow.tracking.places import without_password

if TYPE_CHECKING:
    from canary_mlflow.ledger.chain import Damage
    from canary_mlflow.ledger.rows import Row
    from canary_mlflow.registry.store import GuardedStore

BROKEN = 1
STRANGER = "is not among the trusted ones"


@click.group(epilog=EXIT_CODES)
def audit() -> None:
    """Who made which version champion, when and why. Verifies that record too."""


@audit.command(epilog=EXIT_CODES)
@click.argument("file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--key", "keys", multiple=True, type=click.Path(path_type=Path), help="Trust this key, and no other.")
@click.option("--head", metavar="SEQ:DIGEST", help="A head that an earlier verification printed.")
@click.option("--artifacts", default="", metavar="PLACE", help="A server's --artifacts-destination, for its database.")
@store_option
@click.pass_context
def verify(
    ctx: click.Context,
    file: Path | None,
    keys: tuple[Path, ...],
    head: str | None,
    artifacts: str,
    tracking_uri: str | None,
) -> None:
    """Check chain, signatures and policies, of an exported FILE or of the store; of the store also aliases, files and
    metrics.

    Exits with 1 when something does not hold, and prints the head to keep elsewhere when everything does.
    """
    from canary_mlflow.errors import UsageError
    from canary_mlflow.files.text import text_lines
    from canary_mlflow.ledger.chain import damages, from_lines
    from canary_mlflow.ledger.clock import jumps
    from canary_mlflow.ledger.keys import key_folder, load_public, public_files
    from canary_mlflow.registry.policy_audit import policy_damages

    trusted = load_public(keys or public_files(key_folder()))
    found: list[Damage] = []
    if file is not None:
        with text_lines(file) as lines:
            rows = list(from_lines(lines, str(file)))
        if not rows:
            raise UsageError(f"{file}: no row in it, so nothing holds; expected what `canary audit export` writes")
    else:
        guard = open_guard(tracking_uri)
        rows = guard.ledger()
        found += store_damages(guard, rows, artifacts)
    backward, notes = jumps(rows)
    found = [*damages(rows, trusted, head), *policy_damages(rows), *backward, *found]
    for note in notes:
        echo(f"note: {note}")
    for one in found:
        echo(str(one))
    if found:
        findings = "1 finding" if len(found) == 1 else f"{len(found)} findings"
        echo(f"{findings} in {len(rows)} rows: the ledger does not hold.", err=True)
        if any(STRANGER in str(one) for one in found):
            echo("Its signer's public key is given with --key FILE, or with canary keys trust FILE.", err=True)
        tell_failed(str(file) if file is not None else tracking_uri or "the store of this folder", found, rows)
        ctx.exit(BROKEN)
    echo(f"{len(rows)} rows hold, signed with trusted keys.")
    if rows:
        echo(f"head {rows[-1].head}")


def tell_failed(place: str, found: Sequence[Damage], rows: Sequence[Row]) -> None:
    """Have the webhooks hear of it, if there are any; of the same findings once."""
    from canary_mlflow.notify.events import of_audit
    from canary_mlflow.notify.once import tell_once

    head = rows[-1].head if rows else ""
    tell_once(of_audit(without_password(place), [str(one) for one in found], head))


def store_damages(guard: GuardedStore, rows: Sequence[Row], artifacts: str) -> list[Damage]:
    """What the store says against its ledger."""
    from canary_mlflow.registry.audit import against_store

    return list(against_store(guard, rows, artifacts))


@audit.command(epilog=EXIT_CODES)
@click.argument("model")
@store_option
def log(model: str, tracking_uri: str | None) -> None:
    """Every row about MODEL, and those that set a policy for it, oldest first."""
    from canary_mlflow.ledger.champions import line
    from canary_mlflow.ledger.policy_rows import matches, pattern_of

    rows = rows_of(tracking_uri, model)
    policies = [row for row in open_guard(tracking_uri).policies() if matches(pattern_of(row), model)]
    for row in sorted((*rows, *policies), key=lambda row: row.seq):
        echo(line(row))


@audit.command(epilog=EXIT_CODES)
@click.argument("model")
@click.option("--at", "at", metavar="DATE", help="ISO 8601; a day means its end. Without it: now.")
@click.option("--alias", default="champion", show_default=True)
@store_option
def blame(model: str, at: str | None, alias: str, tracking_uri: str | None) -> None:
    """Which version of MODEL was champion at a date, by which verdict, by whom."""
    from datetime import UTC

    from canary_mlflow.errors import UsageError
    from canary_mlflow.ledger.champions import champion_at, line, parse_moment

    moment = parse_moment(at) if at else datetime.now(UTC)
    rows = rows_of(tracking_uri, model)
    row = champion_at(rows, moment, alias)
    if row is None:
        first = next((found for found in rows if found.moves and found.alias == alias), None)
        since = (
            f"the first is in row {first.seq}, {first.facts.get('time', 'of an unknown time')}"
            if first
            else "there has been none"
        )
        raise UsageError(
            f"{alias} of {model!r} at {moment.isoformat()}: none yet; {since}; see: canary audit log {model}"
        )
    echo(line(row))
    verdict = next((found for found in rows if found.seq == row.facts.get("verdict_row")), None)
    if verdict is not None:
        echo(line(verdict))


@audit.command(epilog=EXIT_CODES)
@store_option
def export(tracking_uri: str | None) -> None:
    """The whole ledger as JSON lines on stdout; `canary audit verify FILE` checks it anywhere."""
    from canary_mlflow.ledger.chain import to_line

    for row in open_guard(tracking_uri).ledger():
        click.echo(to_line(row))


def rows_of(uri: str | None, model: str) -> list[Row]:
    """The rows about a model. Raises UsageError when there are none."""
    from canary_mlflow.errors import UsageError

    rows = open_guard(uri).ledger(model)
    if not rows:
        raise UsageError(f"{model!r}: no row of the ledger is about it; expected a model that was gated; canary gate …")
    return rows


def open_guard(uri: str | None) -> GuardedStore:
    """The guarded store. Raises UsageError for a registry that keeps no ledger here."""
    from canary_mlflow.errors import UsageError
    from canary_mlflow.registry.door import guard_of

    client = open_store(uri)
    guard = guard_of(client)
    if guard is None:
        raise UsageError(
            f"{without_password(client.tracking_uri)}: its ledger cannot be read from here; expected the database "
            "itself, or a file from `canary audit export` run there"
        )
    return guard
