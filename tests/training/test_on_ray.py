"""Sessions on a Ray cluster of two nodes: the same numbers and verdict, pairs on one node, nodes and drivers that die.

What a made-up Ray can show is in tests/canary_mlflow/test_cluster.py.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import Nodes, nodes
from workplace import ROOT, Workplace

from canary_mlflow.tags import CLUSTER_NODE, CLUSTER_UNIT, PARENT_RUN

pytestmark = [
    pytest.mark.full,  # a cluster, and sessions on it; test_cluster.py guards the parts every day
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason='Ray is not installed: pip install "canary-mlflow[ray]"'),
]
STEPS = 40  # a champion needs at least 30
WORDS = ("algo=sft", "model_name=m", f"train.max_steps={STEPS}", "repeats=2")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes() as found:
        yield found


def on_ray(cluster: Nodes) -> tuple[str, ...]:
    return ("launcher=ray", f"launcher.address={cluster.address}")


def children(workplace: Workplace) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(workplace.uri)
    found = client.search_runs(
        [one.experiment_id for one in client.search_experiments()],
        "tags.`canary.role` LIKE '%'",
        order_by=["attributes.start_time ASC"],
    )
    return [run for run in found if run.data.tags["canary.role"] in ("run", "baseline")]


def losses(workplace: Workplace) -> dict[str, list[float]]:
    from mlflow import MlflowClient

    client = MlflowClient(workplace.uri)
    return {
        run.data.tags["canary.seed"]: [
            point.value for point in client.get_metric_history(run.info.run_id, "stability/loss")
        ]
        for run in children(workplace)
        if run.info.status == "FINISHED"
    }


def until(true: Callable[[], Any], seconds: float = 240) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.2)
    raise AssertionError("it did not come to pass")


def training(workplace: Workplace) -> list[Any]:
    """The runs that are at work now."""
    if not (workplace.folder / "mlflow.db").exists():
        return []
    return [run for run in children(workplace) if "stability/loss" in run.data.metrics and run.info.status == "RUNNING"]


def processes_of(folder: Path) -> list[psutil.Process]:
    """The runs' own processes that work for the store in this folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if "canary_mlflow.training.worker" in words and process.info["cwd"] == str(folder):
            found.append(process)
    return found


def test_the_same_numbers_and_the_same_verdict_as_on_this_machine(cluster: Nodes, tmp_path: Path) -> None:
    verdicts, series = [], []
    for name, launcher in (("here", ()), ("there", on_ray(cluster))):
        folder = tmp_path / name
        folder.mkdir()
        workplace = Workplace(folder=folder)
        ended = [workplace.train(*WORDS, *launcher) for _ in range(2)]
        verdicts.append([(one.returncode, one.stdout.split()[0]) for one in ended])
        series.append(losses(workplace))
        ran = [run.data.tags.get(CLUSTER_NODE) for run in children(workplace)]
        assert set(ran) == (set(cluster.nodes) if launcher else {None})
    assert verdicts[0] == verdicts[1]
    assert series[0] == series[1]
    assert all(len(values) == STEPS for values in series[0].values())


def test_a_pair_of_a_lost_node_is_made_again_whole(cluster: Nodes, workplace: Workplace) -> None:
    process = workplace.start("-m", "training", *WORDS, "train.max_steps=60", *on_ray(cluster))
    (hit, *_) = until(lambda: training(workplace))
    node = hit.data.tags[CLUSTER_NODE]
    cluster.kill(node)
    try:
        out, err = process.communicate(timeout=600)
    finally:
        cluster.add()
    assert process.returncode == 0, err
    assert "its node was lost; making it again, whole" in err
    runs = children(workplace)
    again = [run for run in runs if run.data.tags["canary.seed"] == hit.data.tags["canary.seed"]]
    assert [run.info.status for run in again] == ["FAILED", "FINISHED"]
    assert again[0].data.tags["canary.failure"] == "interrupted"
    assert len({run.data.tags[CLUSTER_UNIT] for run in again}) == 2
    assert again[1].data.tags[CLUSTER_NODE] != node
    assert "2 candidate runs" in out


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_the_session_ends_its_runs(cluster: Nodes, workplace: Workplace, how: signal.Signals) -> None:
    process = workplace.start("-m", "training", *WORDS, "train.max_steps=2000", *on_ray(cluster))
    until(lambda: training(workplace))
    began = processes_of(workplace.folder)
    assert began
    process.send_signal(how)
    _, err = process.communicate(timeout=120)
    until(lambda: not processes_of(workplace.folder), 60)
    if how is signal.SIGINT:
        assert process.returncode == 4
        assert "recorded as FAILED" in err
        assert {run.data.tags["canary.failure"] for run in children(workplace)} == {"interrupted"}
    # Whoever comes next ends what a killed session has left.
    from mlflow import MlflowClient

    from canary_mlflow.registry.sessions.leftovers import close_left_open

    close_left_open(MlflowClient(workplace.uri))
    assert {run.info.status for run in children(workplace)} == {"FAILED"}


def side_of(workplace: Workplace, run: Any) -> str:
    """Its session is called `baseline: REVISION` or `candidate: REVISION`."""
    from mlflow import MlflowClient

    session = MlflowClient(workplace.uri).get_run(run.data.tags[PARENT_RUN])
    return str(session.info.run_name).partition(":")[0]


def test_revisions_are_compared_in_pairs_that_stay_on_one_node(cluster: Nodes, workplace: Workplace) -> None:
    checkout = workplace.folder / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(checkout)], check=True)
    there = Workplace(folder=checkout)
    ended = there.canary(
        "ab", "--baseline", "HEAD", "--candidate", "HEAD", "--launcher", "ray", "algo=sft", f"train.max_steps={STEPS}",
        RAY_ADDRESS=cluster.address, PYTHONPATH=str(checkout), MLFLOW_TRACKING_URI=there.uri,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "PASS" in ended.stdout
    runs = children(there)
    nodes_of = {
        seed: {run.data.tags[CLUSTER_NODE] for run in runs if run.data.tags["canary.seed"] == seed}
        for seed in {run.data.tags["canary.seed"] for run in runs}
    }
    assert all(len(found) == 1 for found in nodes_of.values())
    assert set().union(*nodes_of.values()) == set(cluster.nodes)
    turns = [[side_of(there, run) for run in runs if run.data.tags["canary.seed"] == seed] for seed in ("0", "1")]
    assert turns == [["baseline", "candidate"], ["candidate", "baseline"]]


def test_added_runs_of_a_version_come_in_pairs_on_one_node(cluster: Nodes, workplace: Workplace) -> None:
    checkout = workplace.folder / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(checkout)], check=True)
    there = Workplace(folder=checkout)
    own = {"PYTHONPATH": str(checkout), "MLFLOW_TRACKING_URI": there.uri, "RAY_ADDRESS": cluster.address}
    for words in (("seed=0", "repeats=2"), ("seed=5", "repeats=1")):
        made = there.train("algo=sft", "model_name=m", f"train.max_steps={STEPS}", *words, **own)
        assert made.returncode in (0, 3), made.stderr
    policy = checkout / "always.yaml"
    policy.write_text("base: smoke\nlooks: {runs: [2, 3], shares: [0.5, 0.5], fresh_baseline: always}\n")
    ended = there.canary("gate", "m", "2", "--top-up", "--launcher", "ray", "--policy", str(policy), **own)
    assert ended.returncode in (0, 3), ended.stderr
    assert ended.stdout.startswith(("PASS", "INCONCLUSIVE")), ended.stdout
    added = [run for run in children(there) if CLUSTER_NODE in run.data.tags]
    pairs = [[run for run in added if run.data.tags["canary.seed"] == seed] for seed in ("0", "1")]
    for pair in pairs:
        assert {run.data.tags["canary.role"] for run in pair} == {"run", "baseline"}
        assert len({run.data.tags[CLUSTER_NODE] for run in pair}) == 1


def test_a_sweep_runs_its_jobs_side_by_side(cluster: Nodes, workplace: Workplace) -> None:
    ended = workplace.train(
        "--multirun", "algo=sft", "seed=0,1", f"train.max_steps={STEPS}", "model_name=m", *on_ray(cluster)
    )
    assert "2 of 2 runs finished" in ended.stderr, ended.stderr
    assert {run.data.tags[CLUSTER_NODE] for run in children(workplace)} == set(cluster.nodes)


def test_the_class_of_host_is_kept(cluster: Nodes, workplace: Workplace) -> None:
    ended = workplace.train(*WORDS, "hardware.host_class=first", *on_ray(cluster))
    assert ended.returncode == 0, ended.stderr
    assert len({run.data.tags[CLUSTER_NODE] for run in children(workplace)}) == 1
    nobody = workplace.train(*WORDS, "hardware.host_class=nobody", "launcher.wait_minutes=0", *on_ray(cluster))
    assert nobody.returncode == 4
    assert "no node had CPU 2, nobody 1 for 0 minutes" in nobody.stderr
