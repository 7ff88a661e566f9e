"""`canary deliver`: sends later what a run could not deliver to its store."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from canary_mlflow.commands.shared import store_option_of
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.errors import CanaryError, StoreError
from canary_mlflow.shown import echo, say

PATIENCE = 30.0  # seconds without the store taking anything


@click.command(epilog=EXIT_CODES)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@store_option_of("the one that the run was recorded in")
@click.pass_context
def deliver(ctx: click.Context, file: Path | None, tracking_uri: str | None) -> None:
    """Send what runs could not deliver to their store. They left it in FILE (undelivered.jsonl).

    Without FILE: all such files in this folder and below, each whatever becomes of the others. Rows that arrived before
    are recognised. A file is removed when everything has arrived; otherwise it keeps the rest.
    """
    from canary_mlflow.tracking.delivery.outbox import UNDELIVERED, StillSent

    given = ctx.get_parameter_source("tracking_uri") is ParameterSource.COMMANDLINE
    if file is not None:
        bring(file, tracking_uri, given=given)
        return
    found = sorted(Path.cwd().rglob(UNDELIVERED))
    if not found:
        echo(f"Nothing waits: no {UNDELIVERED} in {Path.cwd()} or below.")
    code = 0
    for each in found:
        try:
            bring(each, tracking_uri, given=given)
        except StillSent as error:
            say(str(error))
        except CanaryError as error:
            say(str(error))
            code = max(code, error.exit_code)
    ctx.exit(code)


def bring(file: Path, tracking_uri: str | None, *, given: bool) -> None:
    """Send one file, to `tracking_uri` if it was `given` with the command.

    Raises UsageError for another kind of file, StoreError if the store does not take everything.
    """
    from canary_mlflow.tracking.delivery.outbox import Outbox
    from canary_mlflow.tracking.delivery.recorder import Recorder
    from canary_mlflow.tracking.stores.places import without_password
    from canary_mlflow.tracking.stores.session import get_run
    from canary_mlflow.tracking.stores.store import prepare_store

    outbox = Outbox.of_file(file)
    # MLFLOW_TRACKING_URI may be another project's today. Where it is the run's store, it has the password too.
    usable = tracking_uri and (given or without_password(tracking_uri) == outbox.store)
    try:
        client = prepare_store(tracking_uri if usable else outbox.store)
        get_run(client, outbox.run_id)
        values = outbox.values
        recorder = Recorder(client, outbox.run_id, file.parent, outbox=outbox)
        recorder.start()
        recorder.close(PATIENCE)
    finally:
        outbox.close()
    if recorder.undelivered is not None:
        raise StoreError(
            f"{file}: {outbox.values} of {values} values still wait: {recorder.why_waiting}; "
            "expected a store that takes them; run it again later"
        )
    for sentence in recorder.losses():
        say(sentence)
    echo(f"{values - recorder.lost} values and what went with them are in run {outbox.run_id} now.")
