"""What is imported without torch's compiler is compiled when it is called."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch

from training.compiling import compiled_later


def test_what_is_compiled_later_is_compiled_at_its_first_call_and_once() -> None:
    compiled, compile_now = [], torch.compile

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    with compiled_later():

        @torch.compile(backend=backend)
        def double(x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        more = torch.compile(lambda x: x + 1, backend=backend)
    assert torch.compile is compile_now
    assert compiled == []
    assert [double(torch.ones(2)).tolist(), double(torch.zeros(2)).tolist()] == [[2.0, 2.0], [0.0, 0.0]]
    assert (double.__name__, len(compiled)) == ("double", 1)
    assert more(torch.ones(1)).item() == 2.0


def test_a_run_loads_no_compiler_that_it_may_not_need() -> None:
    """bitsandbytes would load it, a tenth of all that a run loads."""
    code = """
import sys
from training import worker
worker.load("dpo")
print("torch._inductor.compile_fx" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "False", done.stderr
