"""Who asks: the account, or behind a server the user that it has authenticated."""

from __future__ import annotations

import os
import pwd
import sys


def current_actor() -> str:
    """A name for the ledger. Inside a request to a server without authentication: `anonymous (ADDRESS)`."""
    flask = sys.modules.get("flask")  # a process that serves requests has loaded it
    if flask is not None and flask.has_request_context():
        name = flask.g.get("mlflow_authenticated_user")
        return str(name) if name else f"anonymous ({flask.request.remote_addr})"
    return account()


def account() -> str:
    """The account's name by its number, which no variable of the environment changes; containers may run under a number
    that has none."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"
