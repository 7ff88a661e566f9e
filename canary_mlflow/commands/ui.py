"""`canary ui`: MLflow's server with the canary pages, over the embedded store, for this machine only."""

from __future__ import annotations

import os
import socket
import sys

import click

from canary_mlflow.commands.shared import store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.errors import StoreError, UsageError
from canary_mlflow.shown import echo

HOST = "127.0.0.1"


@click.command(epilog=EXIT_CODES)
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True)
@store_option
def ui(port: int, tracking_uri: str | None) -> None:
    """Open the canary and MLflow pages in the browser. What is running, what was judged, who was champion. Without a
    store yet, a page with the ways to begin.

    Listens on 127.0.0.1 only, and writes nothing on its own. Ctrl-C ends it. To let others in: mlflow server --app-name
    canary-auth
    """
    from canary_mlflow.ledger.uris import guarded_uri
    from canary_mlflow.mlflow_internals import require_guard
    from canary_mlflow.tracking.stores.places import sqlite_file
    from canary_mlflow.tracking.stores.store import prepare_store, resolve

    require_guard("canary ui")
    uri = resolve(tracking_uri)
    if uri.startswith(("http://", "https://")):
        raise UsageError(
            f"--tracking-uri {uri}: a server already; expected a database; where it was started with "
            f"--app-name canary, open {uri.rstrip('/')}/canary"
        )
    file = sqlite_file(uri)
    if file is not None and not file.exists() and not tracking_uri:
        echo(f"{file}: no store there yet; an empty one is made, and the page says how to begin")
    elif file is not None and not file.exists():
        raise StoreError(
            f"{file}: no store there; expected one that a run has made; `canary run` makes it, "
            "--tracking-uri names another"
        )
    refuse_used(port)
    prepare_store(uri)  # brings its tables up to date, or says why not
    echo(f"http://{HOST}:{port}/canary  (a few seconds; Ctrl-C ends it)")
    sys.stdout.flush()
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "canary", "--host", HOST, "--port", str(port)]
    stores = ["--backend-store-uri", uri, "--registry-store-uri", guarded_uri(uri), "--workers", "1"]
    # Replacing this process passes signals and output through untouched. No job runner: the pages need none.
    os.execve(sys.executable, [*command, *stores], {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})


def refuse_used(port: int) -> None:
    """Refuse a port that is taken: the server would say so only after seconds, in a traceback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}; expected a free port; choose another") from error
