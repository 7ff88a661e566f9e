"""A receiver of webhooks that keeps what it was sent."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """One request."""

    headers: dict[str, str]
    raw: str

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raw)
        return found

    @property
    def event(self) -> str:
        """`canary.verdict`, `model_version_alias.created`."""
        return f"{self.body['entity']}.{self.body['action']}"

    def signed_with(self, secret: str) -> bool:
        """Whether MLflow's own function gives the signature that came with it."""
        from mlflow.webhooks.delivery import _generate_hmac_signature

        expected = _generate_hmac_signature(
            secret, self.headers["X-MLflow-Delivery-Id"], self.headers["X-MLflow-Timestamp"], self.raw
        )
        return self.headers.get("X-MLflow-Signature") == expected


class Receiver:
    """A server on a port of its own; answers with `codes` in turn, then with 200."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.got: list[Received] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"])).decode()
                receiver.got.append(Received({key: str(value) for key, value in self.headers.items()}, raw))
                self.send_response(receiver.codes.pop(0) if receiver.codes else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/secret-path"

    def __enter__(self) -> Receiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def events(self, number: int, seconds: float = 30) -> list[str]:
        """The names of what has come, once there is so much of it, or time is up."""
        until = time.monotonic() + seconds
        while len(self.got) < number and time.monotonic() < until:
            time.sleep(0.02)
        return [one.event for one in self.got]
