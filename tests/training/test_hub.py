"""Models of the hub: from its cache without a network, fetched once, and refused in one line if unavailable."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from canaries import a_config, hub_model

from canary_mlflow.training import hub
from canary_mlflow.training.models import model_folder
from canary_mlflow.training.parts import build_parts

COMMIT = "a" * 40


def cached(root: Path, source: Path, repository: str = "EleutherAI/pythia-70m") -> Path:
    """Lay a folder out as the hub's cache does."""
    place = root / f"models--{repository.replace('/', '--')}"
    snapshot = place / "snapshots" / COMMIT
    shutil.copytree(source, snapshot)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    return snapshot


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_cached_model_needs_no_network(hub_cache, tiny_folder, monkeypatch):
    snapshot = cached(hub_cache, tiny_folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket, "create_connection", pytest.fail)

    parts = build_parts(a_config(model=hub_model()))

    assert Path(parts.model.name_or_path) == snapshot
    assert parts.model_revision == COMMIT


def test_offline_and_not_cached_says_what_is_missing_and_how_to_bring_it(hub_cache, monkeypatch, refusal):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    said = refusal(hub_model())

    for part in (
        "model=pythia-70m needs EleutherAI/pythia-70m",
        "HF_HUB_OFFLINE",
        "`hf download EleutherAI/pythia-70m`",
        "HF_HOME",
        "model=local model.path=FOLDER",
    ):
        assert part in said


def test_a_half_cached_model_names_the_missing_files(hub_cache, tiny_folder, monkeypatch, refusal):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = cached(hub_cache, tiny_folder)
    (snapshot / "model.safetensors").unlink()

    assert "the cache lacks it (the weights (model.safetensors))" in refusal(hub_model())


def test_another_revision_than_the_cached_one_is_missing(hub_cache, tiny_folder, monkeypatch, refusal):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    cached(hub_cache, tiny_folder)
    model = hub_model()
    model.revision = "b" * 40

    assert f"--revision {'b' * 40}" in refusal(model)


def test_a_hub_that_refuses_or_keeps_silent_is_given_up_soon(hub_cache, monkeypatch, refusal):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub, "REACH_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (silent.getsockname()[1], 9):
            monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{port}")
            began = time.monotonic()
            assert "the hub cannot be reached" in refusal(hub_model())
            assert time.monotonic() - began < 5


@pytest.mark.parametrize("name", ["too/many/parts", "bad name"])
def test_a_name_that_is_no_repository_is_said(hub_cache, name, refusal):
    assert "is not a hub repository; expected OWNER/NAME" in refusal(hub_model(name))


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download asks for; serves the folder of its server."""

    def do_HEAD(self) -> None:
        self._answer(head=True)

    def do_GET(self) -> None:
        self._answer(head=False)

    def _answer(self, *, head: bool) -> None:
        folder: Path = self.server.folder  # type: ignore[attr-defined]
        path = self.path.split("?")[0]
        if path.startswith("/api/models/EleutherAI/pythia-70m"):
            files = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
            tree = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": COMMIT}
                for file in sorted(folder.iterdir())
            ]
            info = {"_id": "1", "id": "EleutherAI/pythia-70m", "sha": COMMIT, "siblings": files}
            self._send(200, json.dumps(tree if "/tree/" in path else info).encode(), "info", head)
        elif path.startswith("/EleutherAI/pythia-70m/resolve/") and (folder / path.rsplit("/", 1)[1]).is_file():
            file = folder / path.rsplit("/", 1)[1]
            self._send(200, file.read_bytes(), file.name, head)
        else:
            self._send(404, b"{}", "none", head)

    def _send(self, status: int, body: bytes, etag: str, head: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if not head:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def small_hub(tiny_folder, hub_cache, monkeypatch) -> Iterator[None]:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.folder = tiny_folder  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        template = f"http://127.0.0.1:{server.server_port}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        yield
        server.shutdown()


def test_what_is_not_cached_is_fetched_once(small_hub, monkeypatch):
    folder = model_folder(hub_model())

    assert folder.name == COMMIT
    assert (folder / "model.safetensors").is_file()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert model_folder(hub_model()) == folder
    assert build_parts(a_config(model=hub_model())).model_revision == COMMIT


def test_a_repository_the_hub_does_not_know_is_said(small_hub, refusal):
    said = refusal(hub_model("EleutherAI/pythia-71m"))

    assert "needs EleutherAI/pythia-71m, but the hub knows no such repository" in said
