"""The only place where a training command's errors become one line and an exit code."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from canary_mlflow.edge import OUTSIDE, as_one_line, unwinding
from canary_mlflow.errors import CanaryError, UsageError, one_line
from canary_mlflow.shown import say
from canary_mlflow.tracking.signals import Terminated


def ended(work: Callable[[], int]) -> int:
    """Do the work and return its exit code, or that of the error with which it ended."""
    try:
        with unwinding():
            return work()
    except CanaryError as error:
        say(str(error))
        return error.exit_code
    except (HydraException, OmegaConfBaseException) as error:
        say(one_line(error))
        return UsageError.exit_code
    except Exception as error:  # noqa: BLE001 - Python's own exit code 1 would read as BLOCK
        line = as_one_line(error)
        if line is None:  # a bug of ours
            traceback.print_exc()
            return CanaryError.exit_code
        line.show()
        return int(line.exit_code)
    except (KeyboardInterrupt, Terminated) as error:
        how = str(error) or "interrupted"
        with suppress(OSError):  # the terminal may be what went away
            say(f"{how}; runs that had not ended are recorded as FAILED")
        return OUTSIDE
