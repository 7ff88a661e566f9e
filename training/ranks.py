"""`python -m training.ranks FOLDER ALGO COUNT`: one run in several processes, under torch's own launcher.

That starts the ranks, and ends them all when one is lost. What it says of that is a page; here it becomes one line,
left where a single process leaves its word, if the first rank left none.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from training.peers import COUNT, GRACE, clear
from training.process import RESULT, ending_of, write_result

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

TERMINATED = 128 + 15  # exit code


def main(folder: Path, algo: str, count: int) -> int:
    """Start the ranks and wait for them; returns 0 when all have ended well, else 1."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.disable(logging.CRITICAL)  # each signal that it sends on, and a page for each rank that is lost
    clear(folder)
    (folder / RESULT).unlink(missing_ok=True)
    os.environ[COUNT] = str(count)
    # The address: not every machine's own name leads to itself.
    words = ["--standalone", "--local-addr=127.0.0.1"]
    words += [f"--nproc-per-node={count}", f"--shutdown-timeout={GRACE}"]
    try:
        run.main([*words, "--module", "training.worker", str(folder), algo])
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
    # The others end because of the first; what is seen at the same time tells of a signal before it tells of a code.
    rank, first = min(error.failures.items(), key=lambda item: (item[1].exitcode >= 0, item[1].timestamp))
    write_result(folder, "error", f"rank {rank} of {count}: {ending_of(first.exitcode)}", None, None)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
