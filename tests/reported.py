"""Reports made and read as a user does: all files of one, the figures and words of its page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from canary_mlflow import cli


def canary(*arguments: str) -> Result:
    return CliRunner().invoke(cli.canary, list(arguments), catch_exceptions=False, prog_name="canary")


def report(store: Any, subject: str, folder: Path | None = None, *options: str) -> dict[str, Any]:
    """All files of a report: html, md, junit as text, json read, png as names; `text` without a folder."""
    if folder is None:
        result = canary("report", subject, *options, "--tracking-uri", store.uri)
        assert result.exit_code == 0, result.output
        return {"text": result.stdout}
    files = {name: folder / f"report.{name}" for name in ("html", "md", "json", "junit")}
    asked = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    result = canary("report", subject, *asked, "--png", str(folder / "png"), *options, "--tracking-uri", store.uri)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    pictures = sorted((folder / "png").glob("*.png")) if (folder / "png").is_dir() else []
    assert all(one.read_bytes().startswith(b"\x89PNG") for one in pictures)
    return {**found, "json": json.loads(found["json"]), "png": [one.stem for one in pictures], "said": result.stderr}


class Page(HTMLParser):
    """A page's tags, figures (`<data>`) and words."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.figures: dict[str, float] = {}
        self.feed(html)
        self.words = " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL)).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append((tag, found))
        if tag == "data":
            assert found["data-key"] not in self.figures
            self.figures[found["data-key"]] = float(found["value"])


def figures_in(plain: Mapping[str, Any]) -> dict[str, float | None]:
    """What the page must show, from --json, under the page's own names."""
    found: dict[str, float | None] = {}
    for check in plain.get("verdict", {}).get("checks", ()):
        if check["evidence"] and check["role"] != "hard":
            for name in ("baseline", "candidate", "change", "margin"):
                found[f"check.{check['metric']}.{name}"] = check["evidence"][name]
    for run in plain["runs"]:
        found[f"run.{run['run_id']}.steps"] = run["steps"]
        for metric, numbers in run["metrics"].items():
            found |= {f"run.{run['run_id']}.{metric}.{name}": value for name, value in numbers.items()}
    for name, row in zip(plain["correlation"]["names"], plain["correlation"]["rows"], strict=True):
        found |= {
            f"correlation.{name}.{other}": value
            for other, value in zip(plain["correlation"]["names"], row, strict=True)
        }
    for one in plain["performance"]:
        found |= {f"performance.{one['metric']}.{name}": one[name] for name in ("baseline", "candidate", "change")}
    for one in plain["layer_drift"]:
        found |= {f"layer_drift.{one['layer']}.{name}": one[name] for name in ("baseline", "candidate", "times")}
    for one in plain["memory"]["peaks"]:
        found |= {f"memory.{one['algo']}.{name}": one[name] for name in ("median", "lowest", "highest", "runs")}
    for number, one in enumerate(plain["instabilities"]):
        found[f"trouble.{number}.step"] = one["step"]
    return found


def a_run(store: Any, values: Mapping[str, Sequence[float]], *, name: str = "a run", **tags: str) -> str:
    """A run on its own with these series at steps 1, 2, 3 …"""
    from mlflow.entities import Metric

    own = {"canary.role": "run", "canary.seed": "7", "canary.algo": "sft", "canary.tier": "smoke",
           "canary.completed": "true"}  # fmt: skip
    own |= {f"canary.{key}".replace("__", "."): value for key, value in tags.items()}
    run_id: str = store.client.create_run(store.experiment, tags=own, run_name=name).info.run_id
    rows = [(key, step, float(one)) for key, series in values.items() for step, one in enumerate(series, 1)]
    if rows:
        store.client.log_batch(run_id, metrics=[Metric(key, value, 1_700_000_000_000 + n, n) for key, n, value in rows])
    store.client.set_terminated(run_id)
    return run_id
