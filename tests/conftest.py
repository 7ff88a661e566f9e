"""Fixtures that every test may ask for."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import forking
import pytest
import schemas
from workplace import Workplace

from canary_mlflow.loading import collect_seldom

# One process loads all that is tested here.
collect_seldom()
# As in a run's own process; before any test imports torch. Two threads round differently from one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Signing keys of the tests' own: not those of whoever runs them.
os.environ["CANARY_KEYS"] = tempfile.mkdtemp(prefix="canary-test-keys-")

# A shell's background job ignores Ctrl-C, and so would all that the tests start: some of them send one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-docs", action="store_true", help="Write the tables that tests make into the docs.")
    parser.addoption("--write-golden", action="store_true", help="Write tests/golden anew: what reports say.")
    parser.addoption(
        "--full", action="store_true", help="Every fault on every algorithm, races and crashes at full size."
    )


MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30  # of which a daily run of the tests takes a tenth


def write_to_memory() -> None:
    """Keep temporary files where no write waits for a disk: a store's commits wait for it thousands of times."""
    with suppress(OSError):
        place = os.statvfs(MEMORY)
        if place.f_bavail * place.f_frsize >= ROOM and not place.f_flag & (os.ST_NOEXEC | os.ST_RDONLY):
            os.environ["TMPDIR"] = str(MEMORY)
            tempfile.tempdir = None  # read anew


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    schemas.listen()
    if not hasattr(config, "workerinput"):  # one for all processes that test
        if not config.getoption("--full"):
            write_to_memory()
        forking.start()
        config.option.tx = [f"popen//python={forking.python()}" if one == "popen" else one for one in config.option.tx]
    elif sys.executable == forking.python():
        forking.be_real()


def pytest_collection_finish(session: pytest.Session) -> None:
    if "mlflow" in sys.modules:
        forking.copy_new_stores()
    if "hydra" in sys.modules:
        forking.keep_configs()


# Those of 7 s and more, the longest first, so that no worker ends up alone with one of them (make test keeps this
# order).
LONG = (
    "test_faults", "test_benchmarks", "test_pages_browser", "test_wheel", "test_facts", "test_guard_attacks",
    "test_tutorial", "test_session_run", "test_submitted_sweeps", "test_fail_fast", "test_loops", "test_bisect",
    "test_compose", "test_journeys", "test_session_rows", "test_launch", "test_prune", "test_own_scripts",
    "test_signals", "test_guard_race", "test_pages_tasks", "test_gatekeeper", "test_eligibility", "test_top_up_again",
    "test_ci", "test_cli", "test_webhooks", "test_launching", "test_guard_store", "test_top_up", "test_guard_server",
    "test_work_rows", "test_action", "test_guard_people", "test_check_reward", "test_policy", "test_ppo_learns",
    "test_trained_weights", "test_tracking_ranks", "test_db_upgrade", "test_pages", "test_algorithms",
    "test_report_command", "test_tracking_callback", "test_tracking_outage", "test_upgrade_interrupted",
    "test_profiling", "test_own_reward", "test_ppo_trainer", "test_watch_command", "test_any_data", "test_upgrade",
    "test_pages_session", "test_notebook", "test_guard_crash", "test_mlflow_model", "test_interpreter", "test_planning",
    "test_check_weights", "test_variants",
)  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`@pytest.mark.full`: simulations and journeys beside which another test guards the same every day."""
    if not config.getoption("--full"):
        left = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(folder=tmp_path)


@pytest.fixture(autouse=True, scope="module")
def libraries_are_not_collected() -> None:
    """Each training ends with a full collection (accelerate's), which takes a second once all libraries are loaded."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def environment_ends_with_the_module() -> Iterator[None]:
    """What a command sets for its own process (`canary session start` names its store) is not the next module's."""
    before = dict(os.environ)
    yield
    if mlflow := sys.modules.get("mlflow"):
        mlflow.set_tracking_uri(None)
    for key in (set(os.environ) | set(before)) - {"PYTEST_CURRENT_TEST"}:
        if key not in before:
            del os.environ[key]
        elif os.environ.get(key) != before[key]:
            os.environ[key] = before[key]


@pytest.fixture(autouse=True, scope="module")
def subnormal_floats() -> None:
    """A canary takes them for 0 (training/devices.py), in a test's process too; hypothesis asks for them."""
    if torch := sys.modules.get("torch"):
        torch.set_flush_denormal(False)
