"""Make a folder of real pages that any web server shows: `make demo`, or python docs/demo.py [FOLDER].

Trains real sessions (an unchanged one that passes, two that block), tries a real upgrade and compares results of
benchmarks; then it keeps what the live pages answer, with links from file to file. Needs the [train] extra, and for the
upgrade a package index. CANARY_DEMO_IN=FOLDER keeps the store there, and trains nothing that it has.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SESSIONS = (
    ("run tier=smoke algo=dpo", 0),
    ("run tier=smoke algo=dpo", 0),
    ("run tier=smoke algo=dpo fault=lr_high", 1),
    ("run tier=smoke algo=ppo", 0),
    ("run tier=smoke algo=ppo fault=kl_zero", 1),
)
"""What is trained, one after the other, with the exit code of each."""

UPGRADE = "upgrade --to trl==1.15.0 algo=sft"
COMPARED = "evals compare old new --margin 0.05 --full"
EVALS = {
    "old": "candidate",
    "new": "baseline",
}  # what lm-eval wrote of two seeds of a tiny model; the better one was first
ELSEWHERE = "elsewhere.html"
LINK = re.compile(r' (href|src|action|data-(?:curves|band|session|clock|csv|strips|trends|verdict))="([^"]*)"')
AT_ONCE = 20  # series that one request may name
TOO_MANY = 500
PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<link rel="icon" href="static/canary.svg"><link rel="stylesheet" href="static/canary.css"></head>
<body><header class="top"><a class="brand" href="index.html"><img src="static/canary.svg" alt="" width="22" \
height="22">canary</a><nav aria-label="Pages"><a href="index.html">Demo</a><a href="wall.html">Overview</a></nav>
</header>
<main id="main">{body}</main></body></html>
"""


def name_of(place: str) -> str:
    """The file for a path of the pages."""
    url = urlsplit(place)
    stem, dot, kind = url.path.removeprefix("/canary").strip("/").partition(".")
    words = [
        stem or "wall",
        *(word for key, value in parse_qsl(url.query) for word in ([value] if key == "id" else [key, value])),
    ]
    return re.sub(r"[^\w.-]+", "-", "-".join(words)) + (f".{kind}" if dot else ".html")


@dataclass
class Copy:
    """What a Flask client of the pages answers, as files that link to each other."""

    web: Any
    folder: Path
    written: set[str] = field(default_factory=set)

    def follow(self, *starts: str) -> None:
        """Keep these pages and all that they lead to."""
        waiting = deque(starts)
        while waiting:
            place = waiting.popleft()
            if (name := name_of(place)) in self.written:
                continue
            self.written.add(name)
            assert len(self.written) < TOO_MANY, f"{len(self.written)} pages, and {place}"
            answer = self.web.get(place, follow_redirects=True)
            text = answer.text
            if answer.mimetype == "text/html":
                found = [
                    html.unescape(value)
                    for key, value in LINK.findall(text)
                    if key in ("href", "data-curves", "data-band", "data-clock", "data-trends")
                ]
                waiting += [one.partition("#")[0] for one in found if ours(one)]
                self.beside(text)
                text = self.page(text)
            (self.folder / name).write_text(text)

    def beside(self, page: str) -> None:
        """The series that a session's page asks for one by one, in one file each."""
        for attribute, prefix, names in (
            ("data-session", "", re.findall(r' data-series="([^"]*)"', page)),
            (
                "data-strips",
                "strips-",
                [one for many in re.findall(r' data-names="([^"]*)"', page) for one in many.split(",")],
            ),
        ):
            for found in re.findall(f' {attribute}="([^"]*)"', page):
                place = html.unescape(found)
                answers = [] if prefix else [self.web.get(place).json]
                unique = list(dict.fromkeys(map(html.unescape, names)))
                for at in range(0, len(unique), AT_ONCE):
                    answers.append(
                        self.web.get(f"{place}&{urlencode({'names': ','.join(unique[at : at + AT_ONCE])})}").json
                    )
                (self.folder / f"{prefix}{name_of(place)}").write_text(json.dumps(joined(answers)))

    def page(self, text: str) -> str:
        """A page whose links lead to files; nothing in it waits for news."""

        def link(found: re.Match[str]) -> str:
            key, place = found[1], html.unescape(found[2])
            if key == "action" or (place.startswith("/") and not ours(place) and "/static/" not in place):
                place = ELSEWHERE
            elif "/static/" in place:
                place = place.removeprefix("/canary/")
            elif ours(place):
                url = urlsplit(place)
                name = ("strips-" if key == "data-strips" else "") + name_of(place)
                place = f"{name}?{url.query}" if key.startswith("data-") and url.query else name
                place += f"#{url.fragment}" if url.fragment else ""
            return f' {key}="{html.escape(place)}"'

        text = re.sub(r' data-every="\d+"', "", LINK.sub(link, text))
        return text.replace('<nav aria-label="Pages">', '<nav aria-label="Pages"><a href="index.html">Demo</a>', 1)


def ours(place: str) -> bool:
    """Whether it is a page or JSON of ours that is kept: no search, no other order."""
    url = urlsplit(place)
    kept = url.path.startswith("/canary") and "/static/" not in url.path and not url.path.endswith((".csv", "/verdict"))
    return (kept and not {"q", "skip", "verdict"} & set(dict(parse_qsl(url.query)))) or (
        url.path == "/canary/verdict" and bool(url.query)
    )


def joined(answers: Sequence[Any]) -> Any:
    """Several answers about the same runs as one with the series of all."""
    first, *others = answers
    for other in others:
        first["bands"] = {**first.get("bands", {}), **other.get("bands", {})}
        for run, more in zip(first["runs"], other["runs"], strict=True):
            run["series"] |= more["series"]
    return first


def said(folder: Path, *words: str, code: int) -> str:
    """What a command prints. Raises RuntimeError if it ends with another exit code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "CANARY_KEYS": str(folder / "keys")}
    done = subprocess.run(
        [sys.executable, "-m", "canary_mlflow.cli", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"canary {shlex.join(words)}: exit code {done.returncode}", flush=True)
    if done.returncode != code:
        raise RuntimeError(f"expected {code}; {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def trained(folder: Path) -> dict[str, str]:
    """The sessions, in a store in `folder`; and what an upgrade and a comparison of results print."""
    if not (folder / "mlflow.db").exists():
        for words, code in SESSIONS:
            said(folder, *words.split(), code=code)
    for side, name in EVALS.items():
        shutil.copytree(ROOT / "tests" / "data" / "evals" / "lm_eval" / name, folder / side, dirs_exist_ok=True)
    return {words: said(folder, *words.split(), code=1) for words in (UPGRADE, COMPARED)}


def client_of(uri: str) -> Any:
    """A client of the pages, without a server."""
    os.environ |= {"_MLFLOW_SERVER_FILE_STORE": uri, "_MLFLOW_SERVER_REGISTRY_STORE": f"canary+{uri}"}
    from flask import Flask

    from canary_mlflow.pages.blueprint import add_pages

    app = Flask("demo")
    add_pages(app)
    return app.test_client()


def sessions_of(store: Path) -> list[str]:
    """The ids of the sessions, in the order of SESSIONS."""
    with sqlite3.connect(store / "mlflow.db") as database:
        found = database.execute(
            "SELECT run_uuid FROM runs JOIN tags USING (run_uuid) WHERE key = 'canary.role' AND value = 'session' "
            "ORDER BY start_time"
        )
        return [run_id for (run_id,) in found]


def front(sessions: Sequence[str]) -> str:
    """The first page: where to look."""
    _, unchanged, learning_rate, _, penalty = (f"session-{one}.html" for one in sessions)
    items = (
        ("wall.html", "The wall", "a row for each model, red first: last verdicts, what was changed, champions"),
        (learning_rate, "A BLOCK", "DPO with a learning rate 200 times too high"),
        (unchanged, "A PASS", "the same DPO canary, nothing changed"),
        (penalty, "PPO without its KL penalty", "what the watch said, curves, and answers with their rewards"),
        ("upgrade.html", "An upgrade", f"<code>canary {UPGRADE}</code>, tried before it was installed"),
        ("evals.html", "Evaluations", "two checkpoints by their lm-eval results, item by item"),
        ("report.html", "A report", "one file, for a mail or an archive"),
    )
    listed = "".join(f'<li><p><a href="{place}"><b>{name}</b></a>: {what}.</p></li>' for place, name, what in items)
    return PAGE.format(
        title="canary-mlflow: a demo",
        body="<h1>Look around</h1><p>Pages of real sessions, as <code>canary ui</code> showed them: small models, "
        "trained on a CPU. Search, comparison and MLflow's own pages need a server; links, charts and zooms work.</p>"
        f"<ul>{listed}</ul>",
    )


def text_page(title: str, command: str, text: str, after: str) -> str:
    body = f"<h1>{title}</h1><pre>$ canary {html.escape(command)}\n\n{html.escape(text)}</pre><p>{after}</p>"
    return PAGE.format(title=title, body=body)


def make(store: Path, place: Path, texts: Mapping[str, str]) -> None:
    """The folder, from the store in `store`."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copytree(ROOT / "canary_mlflow" / "pages" / "static", place / "static")
    web = client_of(f"sqlite:///{store}/mlflow.db")
    sessions = sessions_of(store)
    Copy(web, place).follow("/canary", "/canary/sessions", *(f"/canary/session?id={one}" for one in sessions))
    (place / "index.html").write_text(front(sessions))
    (place / "upgrade.html").write_text(
        text_page("An upgrade", UPGRADE, texts[UPGRADE],
                  "Both sets of packages were installed side by side, and the same short training ran in each. Where "
                  "triton is installed, trl 1.15.0 does not fail.")
    )  # fmt: skip
    (place / "evals.html").write_text(
        text_page("Evaluations", COMPARED, texts[COMPARED],
                  "Two seeds of a tiny model, by lm-eval 0.4.13. No training is needed for this.")
    )  # fmt: skip
    (place / ELSEWHERE).write_text(
        PAGE.format(title="Not in the demo", body="<h1>Not in the demo</h1><p>Search, comparison, CSV and MLflow's own "
                    "pages need a server: <code>canary ui</code> starts one.</p>")
    )  # fmt: skip
    # A click on a point of a model's trend asks for the verdict by its row.
    (place / "verdict.html").write_text(
        '<!doctype html><script>const row = new URLSearchParams(location.search).get("row"); '
        'location.replace("verdict-row-" + row + ".html")</script>'
    )


def main(place: Path) -> int:
    with tempfile.TemporaryDirectory(prefix="canary-demo-") as made:
        store = Path(os.environ.get("CANARY_DEMO_IN", made)).resolve()
        store.mkdir(exist_ok=True)
        os.environ["CANARY_KEYS"] = str(store / "keys")
        texts = trained(store)
        make(store, place, texts)
        said(store, "report", sessions_of(store)[-1], "--html", str(place / "report.html"), code=0)
    print(f"{len(list(place.iterdir()))} files; to look at them: python -m http.server -d {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "demo").resolve()))
