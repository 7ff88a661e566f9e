"""A Ray cluster of several nodes on this machine, in a separate process: a head without CPUs, and two nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PROGRAM = """
import json, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = {}
def add(*classes):
    node = cluster.add_node(num_cpus=2, resources=dict.fromkeys(classes, 1))
    nodes[node.node_id] = node, classes
    return node.node_id
made = [add("first"), add()]
print(json.dumps({"address": cluster.address, "nodes": made}), flush=True)
for line in sys.stdin:
    what, _, which = line.strip().partition(" ")
    if what == "kill":
        gone, classes = nodes.pop(which)
        cluster.remove_node(gone, allow_graceful=False)
        print("gone", flush=True)
    elif what == "add":
        print(add(*classes), flush=True)
cluster.shutdown()
"""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """`address` as ray.init takes it; `nodes`: the ids of those that have CPUs."""

    address: str
    nodes: list[str]
    process: subprocess.Popen[str]

    def kill(self, node: str) -> None:
        """As a machine dies: its raylet and all that it has started."""
        self._tell(f"kill {node}")
        self.nodes.remove(node)

    def add(self) -> str:
        """A node of the class of the one that was killed last."""
        self.nodes.append(self._tell("add"))
        return self.nodes[-1]

    def _tell(self, word: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def nodes() -> Iterator[Nodes]:
    """Up for a while. Ray must be installed."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin
    assert process.stdout
    try:
        said = json.loads(process.stdout.readline())
        yield Nodes(**said, process=process)
    finally:
        process.stdin.close()
        process.wait(60)
