"""What GitHub gives a job: its environment, and an API on loopback that records what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

HEAD = "a" * 40


@dataclass
class GitHub:
    """The API of one repository. `comments`: of its pull request. `refuses`: the status for whatever would write.

    `raw`: what is sent instead of JSON, as a proxy does that wants somebody to sign in.
    """

    address: str = ""
    comments: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    refuses: int = 0
    raw: bytes = b""

    @property
    def checks(self) -> list[dict[str, Any]]:
        """The check runs that were made."""
        return [body for method, path, body in self.calls if method == "POST" and path.endswith("/check-runs")]

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        """As GitHub would."""
        address = urlsplit(target)
        self.calls.append((method, address.path, body))
        if method != "GET" and self.refuses:
            return self.refuses, {"message": "Resource not accessible by integration"}
        if address.path == "/repos/o/r/issues/7/comments":
            if method == "POST":
                self.comments.append({"id": 1000 + len(self.comments), **body})
                return 201, self.comments[-1]
            asked = {key: int(value[0]) for key, value in parse_qs(address.query).items()}
            first = (asked["page"] - 1) * asked["per_page"]
            return 200, self.comments[first : first + asked["per_page"]]
        if method == "PATCH" and address.path.startswith("/repos/o/r/issues/comments/"):
            one = next(one for one in self.comments if one["id"] == int(address.path.rpartition("/")[2]))
            one.update(body)
            return 200, one
        return (201, {"id": 1}) if address.path == "/repos/o/r/check-runs" else (404, {"message": "Not Found"})


@contextmanager
def github() -> Iterator[GitHub]:
    """An API that answers until the end of the block."""
    api = GitHub()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            assert self.headers["Authorization"] == "Bearer a-token"
            status, found = api.answer(self.command, self.path, json.loads(self.rfile.read(size)) if size else None)
            content = api.raw or json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = handle_any

        def log_message(self, *arguments: Any) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()


def job(api: GitHub, folder: Path, *, head: str = "o/r") -> dict[str, str]:
    """The environment of a job on pull request 7, whose branch is in the repository `head`."""
    event = folder / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7, "head": {"sha": HEAD, "repo": {"full_name": head}}}}))
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_API_URL": api.address,
        "GITHUB_SERVER_URL": "https://github.example",
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_RUN_ID": "11",
        "GITHUB_RUN_ATTEMPT": "1",
        "GITHUB_JOB": "smoke",
        "GITHUB_SHA": "b" * 40,
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_OUTPUT": str(folder / "output.txt"),
        "GITHUB_TOKEN": "a-token",
    }
