"""`python -m training`: compose, train, register, gate. The story of a canary.

Exit codes: 0 PASS or bootstrap, 1 BLOCK, 2 wrong use or configuration, 3 INCONCLUSIVE,
4 something outside failed.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from canary_mlflow.edge import as_one_line
from canary_mlflow.errors import CanaryError, Interrupted, UsageError, one_line
from canary_mlflow.policies import conf_dir
from canary_mlflow.tracking.store import prepare_store
from training import launch, sweep
from training.compose import check, expand, register_schemas, to_config
from training.preflight import preflight

HELP = ("--help", "-h", "--hydra-help", "--version", "-sc", "--shell-completion")
INFORMATION = ("--cfg", "-c", "--info", "-i")  # composes, but runs nothing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; errors become one line here and nowhere else."""
    signal.signal(signal.SIGTERM, _terminate)
    register_schemas()
    try:
        argv = expand(sys.argv[1:] if arguments is None else arguments)
        if not _has(argv, HELP):
            for config in check(argv):
                if not _has(argv, INFORMATION):
                    preflight(config)
                    prepare_store(config.tracking.uri)
        return _with_hydra(argv)
    except CanaryError as error:
        print(f"canary: {error}", file=sys.stderr)
        return error.exit_code
    except (HydraException, OmegaConfBaseException) as error:
        print(f"canary: {one_line(error)}", file=sys.stderr)
        return UsageError.exit_code
    except Exception as error:  # noqa: BLE001 - Python's own exit code 1 would read as BLOCK
        line = as_one_line(error)
        if line is None:  # a defect of ours
            traceback.print_exc()
            return CanaryError.exit_code
        line.show()
        return int(line.exit_code)
    except KeyboardInterrupt:
        print("canary: interrupted; the runs so far are recorded as FAILED", file=sys.stderr)
        return Interrupted.exit_code


def _with_hydra(argv: Sequence[str]) -> int:
    """Let Hydra run the job, or all jobs of a multirun, and collect the exit code."""
    codes: list[int] = []

    @hydra.main(version_base="1.3", config_path=str(conf_dir().resolve()), config_name="config")
    def task(composed: DictConfig) -> int:
        config = to_config(composed)
        scratch = Path(HydraConfig.get().runtime.output_dir)
        code = sweep.run_job(config, scratch) if sweep.is_job() else launch.run_session(config, scratch)
        codes.append(code)
        return code

    # Hydra reads sys.argv; a whole traceback is wanted for what is not the user's mistake.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    before, sys.argv = sys.argv, [sys.argv[0], *argv]
    try:
        task()
    finally:
        sys.argv = before
    # A multirun's jobs may have run in other processes; their runs in MLflow tell how they ended.
    return sweep.exit_code() if sweep.was_multirun() else max(codes, default=0)


def _has(argv: Sequence[str], options: tuple[str, ...]) -> bool:
    return any(word.split("=")[0] in options for word in argv)


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Interrupted(f"stopped by {signal.Signals(signum).name}; the runs so far are recorded as FAILED")


if __name__ == "__main__":
    sys.exit(main())
