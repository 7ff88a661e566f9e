"""Make the pictures of docs/mlflow-ui.md: `make pictures`, or python docs/pictures_mlflow.py [FOLDER].

MLflow's own pages over `canary ui`, with the columns and rows opened that the page tells a reader to open. The sessions
are made up, the verdicts on them are the gate's. Needs Chromium.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pictures import CHROMIUM, MISSING, MODEL, PLACE, canary_ui, chromium, pressed, verdicts, window

COLUMNS = ("tags.`canary.verdict`", "tags.`canary.seed`", "metrics.`perf/step_cost`", "metrics.`quality/eval_loss`",
           "metrics.`stability/loss`")  # fmt: skip
SETTLED = 6_000  # ms: MLflow's pages load in several steps, and nothing on them says that they are done


def main(place: Path) -> int:
    """All pictures, in a store of their own."""
    if not CHROMIUM:
        print(MISSING, file=sys.stderr)
        return 4
    with tempfile.TemporaryDirectory(prefix="canary-pictures-") as made:
        folder = Path(made)
        os.environ.setdefault("CANARY_KEYS", str(folder / "keys"))
        uri = f"sqlite:///{folder}/mlflow.db"
        verdicts(folder, uri)
        experiment, sessions = sessions_of(uri)
        with canary_ui(uri, folder) as address, chromium() as browser:
            runs = f"{address}/#/experiments/{experiment}/runs"
            with window(browser, address, width=1300, height=640) as seen:
                prepare(seen.page, runs, experiment, sessions)
                shoot(seen.page, runs, place / "mlflow-runs.png")
            with window(browser, address, width=1300, height=900) as seen:
                prepare(seen.page, runs, experiment, sessions)
                shoot(seen.page, f"{runs}?compareRunsMode=CHART", place / "mlflow-charts.png")
                shoot(seen.page, f"{address}/#/models/{MODEL}/versions/4", place / "mlflow-version.png")
    return 0


def sessions_of(uri: str) -> tuple[str, list[str]]:
    """The experiment, and its sessions, oldest first."""
    from canary_mlflow.tracking.stores.store import prepare_store

    client = prepare_store(uri)
    experiment = next(one.experiment_id for one in client.search_experiments() if one.name.startswith("made up"))
    found = client.search_runs([experiment], "tags.`canary.role` = 'session'", order_by=["attributes.start_time ASC"])
    return str(experiment), [run.info.run_id for run in found]


def prepare(page: Any, runs: str, experiment: str, sessions: list[str]) -> None:
    """Open the columns and the children of the first and the last session, as a reader would by hand."""
    page.goto(runs)
    page.wait_for_timeout(SETTLED)
    key = f'MLflowLocalStorage-1.1-ExperimentPage-["{experiment}"]-ReactComponentState'
    state = json.loads(page.evaluate("key => localStorage.getItem(key)", key))
    opened = {session: True for session in (sessions[0], sessions[-1])}
    state |= {"selectedColumns": list(COLUMNS), "runsExpanded": opened}
    page.evaluate("([key, state]) => localStorage.setItem(key, state)", [key, json.dumps(state)])
    page.evaluate("localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false')")
    page.get_by_text("Model training").first.click()
    page.goto("about:blank")


def shoot(page: Any, address: str, path: Path) -> None:
    page.goto(address)
    page.wait_for_timeout(SETTLED)
    page.screenshot(path=path)
    pressed(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else PLACE))
