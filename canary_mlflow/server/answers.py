"""Turns views into HTTP answers: values as JSON, errors as one sentence with its status code."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from flask import jsonify
from mlflow.exceptions import MlflowException

from canary_mlflow.errors import (
    BaselineMoved,
    CanaryError,
    NoSuchModel,
    NoSuchRun,
    NoSuchVersion,
    Refused,
    UsageError,
    one_line,
)
from canary_mlflow.ledger.uris import plain_uri
from canary_mlflow.registry.guard.origin import DESTINATION
from canary_mlflow.registry.plugin import SERVER_BACKEND, SERVER_REGISTRY
from canary_mlflow.shown import visible
from canary_mlflow.tracking.stores.places import without_password

if TYPE_CHECKING:
    from flask import Response

STATUS = ((NoSuchModel, 404), (NoSuchVersion, 404), (NoSuchRun, 404), (UsageError, 400), (Refused, 403),
          (BaselineMoved, 409))  # fmt: skip
DATABASE = re.compile(r"\b(?:canary[+:])?(?:sqlite|postgresql)(?:\+\w+)?:///?[^\s'\";]+")

log = logging.getLogger(__name__)


def answered(view: Callable[[], Any]) -> Callable[[], Response]:
    """The view with its values as JSON, and its errors as one sentence with the status code."""

    @wraps(view)
    def answer() -> Any:
        try:
            return jsonify(view())
        except CanaryError as error:
            code = next((code for kind, code in STATUS if isinstance(error, kind)), int(HTTPStatus.SERVICE_UNAVAILABLE))
            said = str(error)
        except MlflowException as error:
            code = int(error.get_http_status_code())
            said = str(error.message)
            if code >= 500:
                log.error("canary: %s", one_line(error))
                code, said = (
                    int(HTTPStatus.SERVICE_UNAVAILABLE),
                    "the registry's database did not answer; expected it to; try again",
                )
        response = jsonify({"error": NAMES.get(code, "UNAVAILABLE"), "message": visible(public(said))})
        response.status_code = code
        return response

    return answer


def public(said: str) -> str:
    """A sentence in one line, without the addresses of the server's database and files: where these are, and the
    account's name there, is nobody's business who only asks."""
    for name, instead in ((SERVER_BACKEND, "this server"), (SERVER_REGISTRY, "this server"), (DESTINATION, "…")):
        uri = plain_uri(os.environ.get(name, ""))
        for spelled in (uri, without_password(uri)) if uri else ():
            said = said.replace(spelled, instead)
    return DATABASE.sub("this server", " ".join(said.split()))


NAMES = {
    400: "INVALID_PARAMETER_VALUE",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
    409: "RESOURCE_CONFLICT",
}
