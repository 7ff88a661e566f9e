"""Who asks: the account, or on a server the user that it has authenticated."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Collection

from canary_mlflow.errors import Refused, UsageError

REASON_LIMIT = 500  # characters that are kept of a reason


def current_actor() -> str:
    """A name for the ledger. Inside a request to a server without authentication: `anonymous (ADDRESS)`."""
    flask = sys.modules.get("flask")  # a process that serves requests has loaded it
    if flask is not None and flask.has_request_context():
        name = flask.g.get("mlflow_authenticated_user")
        return str(name) if name else f"anonymous ({flask.request.remote_addr})"
    return account()


def account() -> str:
    """The account's name by its user id, which no environment variable changes; the id itself if it has no name, as in
    some containers."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


def given(reason: str, expected: str) -> str:
    """The reason as it is kept, on one line. `expected`: what it should tell. Raises UsageError for an empty one."""
    words = " ".join(reason.split())
    if not words:
        raise UsageError(f"--reason: found an empty text; expected {expected}")
    return words[:REASON_LIMIT]


def refuse_stranger(operators: Collection[str], who: str, what: str, instead: str = "ask one of them") -> None:
    """Raise Refused if operators are named and `who` is none of them. `what`: what was to be done."""
    if operators and who not in operators:
        raise Refused(f"{what}: {who!r} is not among those who may ({', '.join(operators)}); {instead}")
