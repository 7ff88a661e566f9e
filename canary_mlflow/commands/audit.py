"""`canary audit`: read the ledger, and check it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.errors import UsageError
from canary_mlflow.loading import without_collecting
from canary_mlflow.shown import echo

if TYPE_CHECKING:
    from canary_mlflow.ledger.chain import Damage, Row
    from canary_mlflow.ledger.keys import PublicKeys


DAY = len("2026-11-21")


def parse_moment(text: str) -> datetime:
    """The moment of a date (its last moment, UTC) or of a date with time (UTC by default). Raises UsageError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--at {text[:80]!r}: no date; expected ISO 8601, such as 2026-11-21 or 2026-11-21T10:00"
        ) from None
    if len(text) == DAY:
        found = found.replace(hour=23, minute=59, second=59, microsecond=999_999)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def champion_at(rows: Iterable[Row], moment: datetime, alias: str) -> Row | None:
    """The row by which a version held the alias at that moment; None before the first. The order of rows counts,
    whatever clocks said; a row whose text is junk makes nothing champion."""
    from canary_mlflow.ledger.chain import settled

    moves = [row for row, since in settled(rows) if row.moves and row.facts and row.alias == alias and since <= moment]
    return moves[-1] if moves else None


def several_places(rows: Iterable[Row]) -> bool:
    """Whether rows are about models of more than one workspace."""
    return len({row.workspace for row in rows}) > 1


def line(row: Row, *, place: bool = False) -> str:
    """One row for people. `place`: with the model's workspace."""
    from canary_mlflow.gates.model.wording import counted
    from canary_mlflow.ledger.chain import Kind, facts_of

    facts = facts_of(row)
    if facts is None:
        return f"{row.seq:>5}  its text is not a JSON object; see: canary audit verify"
    when = str(facts.get("time", ""))[:19]
    if row.kind == Kind.POLICY:
        return (
            f"{row.seq:>5}  {when}  {row.kind:<9} {facts.get('policy')} for models like {facts.get('pattern')}, "
            f"digest {str(facts.get('policy_digest', ''))[:12]}, by {facts.get('actor', '')}: {facts.get('reason', '')}"
        )
    adopted = row.kind == Kind.ADOPT
    asked = f", asked for by {facts['asked_by']} in row {facts['request_row']}" if facts.get("asked_by") else ""
    moved = f", {row.alias} {'as it was' if adopted else 'moved'}" if row.moves else ""
    over = f" over version {facts['baseline_version']}" if facts.get("baseline_version") and not adopted else ""
    name = f"{row.workspace}/{row.model}" if place else row.model
    if row.kind == Kind.SESSION:
        runs = facts.get("runs")
        what = f"session {row.alias}" + (f", {counted(len(runs), 'run')}" if isinstance(runs, dict) else "")
        what += "".join(
            f", run {run_id} of version {number}'s code" for run_id, number in facts.get("ordered", {}).items()
        )
        return f"{row.seq:>5}  {when}  {row.kind:<9} {row.word:<12} {name} {what}, by {facts.get('actor', '')}"
    about = f"{name} version {row.version}" if row.version else name or "the ledger"
    if row.kind == Kind.PRUNE and not row.version:  # an older row, about a session without a version
        about = f"{name} session {facts.get('session')}"
    return (
        f"{row.seq:>5}  {when}  {row.kind:<9} {row.word:<12} {about}"
        f"{over}{moved}, by {facts.get('actor', '')}{asked}: {facts.get('reason', '')}"
    )


BROKEN = 1


@click.group(epilog=EXIT_CODES)
def audit() -> None:
    """Who made which version champion, when and why. Also verifies that record."""
    from canary_mlflow.mlflow_internals import require_guard

    require_guard("canary audit")


@audit.command(epilog=EXIT_CODES)
@click.argument("file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--key", "keys", multiple=True, type=click.Path(path_type=Path), help="Trust this key, and no other.")
@click.option("--head", metavar="SEQ:DIGEST", help="A head that an earlier verification printed.")
@click.option("--witness", metavar="FILE|URL", help="Where heads were published (CANARY_WITNESS): compare each.")
@click.option("--artifacts", default="", metavar="PLACE", help="A server's --artifacts-destination, for its database.")
@store_option
@click.pass_context
def verify(
    ctx: click.Context,
    file: Path | None,
    keys: tuple[Path, ...],
    head: str | None,
    witness: str | None,
    artifacts: str,
    tracking_uri: str | None,
) -> None:
    """Check the ledger of an exported FILE, or of the store. Chain, signatures and policies; of the store also aliases,
    files and metrics.

    Reads only, and walks all workspaces. Exits with 1 if anything does not hold; otherwise prints the head, to be kept
    elsewhere.
    """
    from canary_mlflow.ledger.chain import damages, jumps
    from canary_mlflow.ledger.keys import STRANGER, load_public, trusted
    from canary_mlflow.ledger.writing import against_witness, read_heads
    from canary_mlflow.registry.audit import against_store
    from canary_mlflow.registry.guard.reader import reader_of
    from canary_mlflow.registry.policies.audited import policy_damages

    seen = read_heads(witness) if witness else None
    known = load_public(keys) if keys else trusted()
    found: list[Damage] = []
    with without_collecting():  # a tenth of the time of a large ledger
        if file is not None:
            rows = exported(file)
            known = keys_of_file(known, rows)
        else:
            reader = reader_of(tracking_uri)
            rows, known = reader.ledger(), reader.keys(known)
            found += against_store(reader, rows, artifacts)
        if seen is not None:
            found += against_witness(rows, seen)
        backward, notes = jumps(rows)
        found = [*damages(rows, known, head), *policy_damages(rows), *backward, *found]
    for note in notes:
        echo(f"note: {note}")
    for one in found:
        echo(str(one))
    if found:
        findings = "1 finding" if len(found) == 1 else f"{len(found)} findings"
        echo(f"{findings} in {len(rows)} rows: the ledger does not hold.", err=True)
        if any(STRANGER in str(one) for one in found):
            echo("Its signer's public key is given with --key FILE, or with canary keys trust FILE.", err=True)
        ctx.exit(BROKEN)
    echo(f"{len(rows)} rows hold, signed with trusted keys.")
    for said in began_alone(rows):
        echo(said)
    if rows:
        echo(f"head {rows[-1].head}")


def began_alone(rows: Sequence[Row]) -> Iterator[str]:
    """Keys that no other key vouched for when they came, with the reason why they are trusted."""
    from canary_mlflow.ledger.chain import Kind, facts_of
    from canary_mlflow.ledger.succession import TRUSTED

    for row in rows:
        if (row.kind, row.word) == (Kind.KEY, TRUSTED) and (facts_of(row) or {}).get("subject") == row.key_id:
            yield f"row {row.seq}: key {row.key_id} admitted itself; only its file here vouches for it"


def exported(file: Path) -> list[Row]:
    """The rows of an export. Raises UsageError for a file without any."""
    from canary_mlflow.errors import UsageError
    from canary_mlflow.files.text import text_lines
    from canary_mlflow.ledger.chain import from_lines

    with text_lines(file) as lines:
        rows = list(from_lines(lines, str(file)))
    if not rows:
        raise UsageError(f"{file}: no row in it, so nothing holds; expected what `canary audit export` writes")
    return rows


def keys_of_file(keys: PublicKeys, rows: Sequence[Row]) -> PublicKeys:
    """The trusted keys with what the rows of a file say about them."""
    from canary_mlflow.ledger.chain import Kind
    from canary_mlflow.ledger.succession import with_rows

    first: dict[str, int] = {}
    for row in rows:
        first.setdefault(row.key_id, row.seq)
    return with_rows(keys, [row for row in rows if row.kind == Kind.KEY], first.get)


workspace_option = click.option(
    "--workspace", envvar="MLFLOW_WORKSPACE", show_envvar=True, metavar="NAME", help="Only this workspace; else all."
)


@audit.command(epilog=EXIT_CODES)
@click.argument("model")
@workspace_option
@store_option
def log(model: str, workspace: str | None, tracking_uri: str | None) -> None:
    """List every row about MODEL, oldest first, and those that set a policy for it."""
    from canary_mlflow.ledger.chain import Kind
    from canary_mlflow.registry.guard.reader import reader_of
    from canary_mlflow.registry.policies.in_force import matches, pattern_of

    rows = rows_of(tracking_uri, model, workspace)
    about_none = reader_of(tracking_uri).ledger("", workspace)
    policies = [row for row in about_none if row.kind == Kind.POLICY and matches(pattern_of(row), model)]
    for row in sorted((*rows, *policies), key=lambda row: row.seq):
        echo(line(row, place=several_places(rows)))


@audit.command(epilog=EXIT_CODES)
@click.argument("model")
@click.option("--at", "at", metavar="DATE", help="ISO 8601; a day means its end. Without it: now.")
@click.option("--alias", default="champion", show_default=True)
@workspace_option
@store_option
def blame(model: str, at: str | None, alias: str, workspace: str | None, tracking_uri: str | None) -> None:
    """Say which version of MODEL was champion at a date. By which verdict and by whom; in each workspace with one."""
    from datetime import UTC

    from canary_mlflow.errors import UsageError

    moment = parse_moment(at) if at else datetime.now(UTC)
    rows = rows_of(tracking_uri, model, workspace)
    places = list(dict.fromkeys(row.workspace for row in rows))
    holders = [champion_at([row for row in rows if row.workspace == one], moment, alias) for one in places]
    if not any(holders):
        first = next((found for found in rows if found.moves and found.alias == alias), None)
        since = (
            f"the first is in row {first.seq}, {first.facts.get('time', 'of an unknown time')}"
            if first
            else "there has been none"
        )
        raise UsageError(
            f"{alias} of {model!r} at {moment.isoformat()}: none yet; {since}; see: canary audit log {model}"
        )
    for row in filter(None, holders):
        echo(line(row, place=several_places(rows)))
        verdict = next((found for found in rows if found.seq == row.facts.get("verdict_row")), None)
        if verdict is not None:
            echo(line(verdict, place=several_places(rows)))


@audit.command(epilog=EXIT_CODES)
@store_option
def export(tracking_uri: str | None) -> None:
    """Print the whole ledger as JSON lines. `canary audit verify FILE` checks it anywhere."""
    from canary_mlflow.ledger.chain import to_line
    from canary_mlflow.registry.guard.reader import reader_of

    for row in reader_of(tracking_uri).ledger():
        click.echo(to_line(row))


def rows_of(uri: str | None, model: str, workspace: str | None) -> list[Row]:
    """The rows about a model. Raises UsageError when there are none."""
    from canary_mlflow.errors import UsageError
    from canary_mlflow.registry.guard.reader import reader_of

    rows = reader_of(uri).ledger(model, workspace)
    if not rows:
        where = f" in workspace {workspace!r}" if workspace else ""
        raise UsageError(
            f"{model!r}{where}: no row of the ledger is about it; expected a model that was gated; canary gate …"
        )
    return rows
