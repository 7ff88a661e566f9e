"""Make the pictures of docs/pages.md and docs/reports.md: `make pictures`, or python docs/pictures.py [FOLDER].

The live run is a real training (PPO, fault=kl_zero) beside a real champion; the three verdicts are the gate's, on
histories that were made up so that they come out the same every time. Needs Chromium and the [train] extra.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser import CHROMIUM, MISSING, Window, canary_ui, chromium, window  # noqa: E402

PLACE = ROOT / "docs" / "pictures"
MODEL = "sft-tiny-demo"
VERDICTS = {
    "pass": (1.0, 3),
    "inconclusive": (1.19, 3),
    "block": (1.6, 3),
}  # steps so many times as slow, in so many runs
VERSION = 1 + len(VERDICTS)  # the last of them


def main(place: Path) -> int:
    """All pictures, in a store of their own."""
    if not CHROMIUM:
        print(MISSING, file=sys.stderr)
        return 4
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="canary-pictures-") as made:
        folder = Path(os.environ.get("CANARY_PICTURES_IN", made))
        os.environ.setdefault("CANARY_KEYS", str(folder / "keys"))
        uri = f"sqlite:///{folder}/mlflow.db"
        if not (folder / "mlflow.db").exists():
            train(folder, uri, "repeats=3").wait()
        rows = verdicts(folder, uri)
        with canary_ui(uri, folder) as address, chromium() as browser:
            for name, row in rows.items():
                with window(browser, address) as seen:
                    save(seen.open(f"/canary/verdict?row={row}"), place / f"{name}.png")
            with window(browser, address, height=1300) as seen:
                save(seen.open(f"/canary/session/{MODEL}/{VERSION}"), place / "session.png")
            with window(browser, address) as seen:
                save(seen.open(f"/canary/compare?a={MODEL}/1&b={MODEL}/{VERSION}"), place / "compare.png")
            with window(browser, address, height=600) as seen:
                save(seen.open("/canary/sessions"), place / "sessions.png")
            with window(browser, address, width=794, height=1123) as seen:  # A4 at 96 dots an inch
                seen.page.emulate_media(media="print")
                save(seen.open(f"/canary/session/{MODEL}/{VERSION}"), place / "print.png")
            with window(browser, address, width=390, height=844) as seen:
                save(seen.open(f"/canary/session/{MODEL}/{VERSION}"), place / "phone-session.png")
            with window(browser, address, height=1000) as seen:
                save(seen.open(f"/canary/model?name={MODEL}"), place / "model.png")
            live(folder, uri, address, browser, place)
            report(folder, uri, browser, place)
    return 0


def train(folder: Path, uri: str, *words: str) -> subprocess.Popen[bytes]:
    """A PPO session of the smoke tier."""
    path = os.pathsep.join(item for item in (str(ROOT), os.environ.get("PYTHONPATH", "")) if item)
    return subprocess.Popen(
        [sys.executable, "-m", "canary_mlflow.cli", "run", "tier=smoke", "algo=ppo", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "MLFLOW_TRACKING_URI": uri},
    )


def verdicts(folder: Path, uri: str) -> dict[str, int]:
    """A PASS, an INCONCLUSIVE and a BLOCK: picture → ledger row."""
    from recorded import Recorded

    from canary_mlflow.ledger.table import last
    from canary_mlflow.policies import load_policy
    from canary_mlflow.registry.acts.by_hand import bless
    from canary_mlflow.registry.backends import registry_of
    from canary_mlflow.registry.judging.gatekeeper import gate
    from canary_mlflow.tracking.stores.store import prepare_store

    client = prepare_store(uri)
    experiment = client.create_experiment(f"made up {time.time_ns()}", artifact_location=str(folder / "made-up"))
    store = Recorded(client=client, uri=uri, experiment=experiment, model=MODEL)
    bless(client, MODEL, store.register(session(store, 1.0, 3)), "the first one, looked at by hand")
    rows = {}
    for name, (slower, runs) in VERDICTS.items():
        found = gate(client, MODEL, store.register(session(store, slower, runs)), load_policy("smoke"))
        print(f"{name}: {found.word}")
        assert found.word.lower() == name, found.verdict.reason
        with registry_of(client).store.engine.connect() as connection:
            rows[name] = last(connection).seq  # type: ignore[union-attr]
    return rows


def session(store: Any, slower: float, runs: int) -> str:
    """A made-up session; a slow one has another learning rate, and another package."""
    changed = slower > 1.5
    trl = "1.16.0" if changed else "1.15.0"
    tags = {
        "canary.model_name": MODEL,
        "mlflow.runName": MODEL,
        "canary.env.trl": trl,
    }
    made = str(store.session(slower=slower, runs=runs, tags=tags))
    settings = {"learning_rate": "2e-2" if changed else "2e-3", "optim": "adamw_torch", "weight_decay": "0.0"}
    for run_id in store.children(made):
        for key, value in settings.items():
            store.client.log_param(run_id, f"cfg/{key}", value)
    return made


def live(folder: Path, uri: str, address: str, browser: Any, place: Path) -> None:
    """A training that has lost its KL penalty, while it goes on; wide, dark, and on a phone."""
    training = train(folder, uri, "repeats=1", "seed=7", "fault=kl_zero")
    try:
        with window(browser, address, height=1100) as seen:
            seen.open("/canary").page.locator("[data-part=running] a", has_text="seed 7").click(timeout=300_000)
            seen.page.locator("[data-banners] .banner").first.wait_for(timeout=300_000)
            seen.until("charts[0].lines.loss?.steps.at(-1) > 150", 120)
            run = seen.page.url.removeprefix(address)
            save(seen, place / "live.png")
            watched(uri, run.rpartition("=")[2], browser, place)
            save(seen.open("/canary"), place / "overview.png")
        with window(browser, address, height=1100, dark=True) as seen:
            save(seen.open(run), place / "dark.png")
        with window(browser, address, width=390, height=844) as seen:
            save(seen.open(run), place / "phone.png")
    finally:
        training.wait()


def watched(uri: str, run_id: str, browser: Any, place: Path) -> None:
    """What `canary watch` shows of the run at this moment, in a terminal of 112 columns."""
    from rich.console import Console
    from rich.terminal_theme import MONOKAI

    from canary_mlflow.reports.following import WATCHED, look, screen
    from canary_mlflow.tracking.stores.store import reading_store

    client = reading_store(uri)
    while (sight := look(client, run_id, WATCHED)).run.step < 150 and not sight.ended:
        time.sleep(0.5)  # rows come every ten seconds
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=112, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(screen(sight, int(time.time() * 1000), ""))
    page = place / "watch.html"
    inside = '<pre style="font: 15px/1.35 DejaVu Sans Mono, monospace; padding: 12px; margin: 0">{code}</pre>'
    console.save_html(
        str(page),
        theme=MONOKAI,
        code_format=f"<body style='margin: 0; background: {{background}}; color: {{foreground}}'>{inside}",
        inline_styles=True,
    )
    with window(browser, "file://", width=1060, height=680) as seen:
        seen.open(str(page))
        seen.page.set_viewport_size(
            {"width": 1060, "height": seen.page.evaluate("document.querySelector('pre').offsetHeight")}
        )
        save(seen, place / "watch.png")
    page.unlink()


def report(folder: Path, uri: str, browser: Any, place: Path) -> None:
    """The page of `canary report` on the session that was just live."""
    from canary_mlflow.analysis.reading import study_of
    from canary_mlflow.analysis.subject import find_subject
    from canary_mlflow.reports import html
    from canary_mlflow.tracking.stores.store import prepare_store

    client = prepare_store(uri)
    experiment = client.get_experiment_by_name("canary").experiment_id
    newest = client.search_runs([experiment], "tags.`canary.role` = 'session'", max_results=1)[0].info.run_id
    page = folder / "report.html"
    page.write_text(html.render(study_of(client, find_subject(client, newest))), encoding="utf-8")
    with window(browser, "file://", height=1500) as seen:
        save(seen.open(str(page)), place / "report.png")


def save(seen: Window, file: Path) -> None:
    """What the window shows, as a PNG with a palette: a third of the size."""
    seen.page.wait_for_timeout(500)
    seen.page.screenshot(path=str(file))
    pressed(file)


def pressed(file: Path) -> None:
    """The picture with a palette."""
    from PIL import Image

    with Image.open(file) as picture:
        picture.convert("RGB").quantize(255, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            file, optimize=True
        )
    print(f"{file.name}: {file.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PLACE))
