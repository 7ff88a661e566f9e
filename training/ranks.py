"""`python -m training.ranks FOLDER ALGO COUNT`: one run in several processes, under torch's own launcher.

The launcher starts the ranks, and ends them all if one is lost. Its page about that becomes one line here, in the
run's result.json, if the first rank wrote none.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.module_runner import module_command
from canary_mlflow.training.peers import COUNT, GRACE, clear
from canary_mlflow.training.process import RESULT, ending_of, write_result

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

TERMINATED = 128 + 15  # exit code


def main(folder: Path, algo: str, count: int) -> int:
    """Start the ranks and wait for them; return 0 if all ended well, else 1."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.disable(logging.CRITICAL)  # it logs each signal that it passes on, and a page for each lost rank
    clear(folder)
    (folder / RESULT).unlink(missing_ok=True)
    os.environ[COUNT] = str(count)
    # An address, as not every machine can resolve its own name.
    words = ["--standalone", "--local-addr=127.0.0.1"]
    words += [f"--nproc-per-node={count}", f"--shutdown-timeout={GRACE}"]
    try:
        run.main([*words, *module_command("canary_mlflow.training.worker")[1:], str(folder), algo])
    except SignalException:
        return TERMINATED
    except ChildFailedError as error:
        _bury(folder, error, count)
        return 1
    return 0


def _bury(folder: Path, error: ChildFailedError, count: int) -> None:
    """Say which rank was lost, unless the run has said how it ended."""
    word = folder / RESULT
    if word.exists() and word.read_text(encoding="utf-8").strip():
        return
    # The others end because of the first. Among those seen at the same time, a signal comes before an exit code.
    rank, first = min(error.failures.items(), key=lambda item: (item[1].exitcode >= 0, item[1].timestamp))
    write_result(folder, "error", f"rank {rank} of {count}: {ending_of(first.exitcode)}", None, None)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
