"""Where errors become text: one line on stderr and the exit code that belongs to it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from canary_mlflow.errors import CanaryError, UsageError, folder_gone, one_line
from canary_mlflow.shown import visible
from canary_mlflow.tracking.signals import STOPPING, Terminated, came, expect, notice

EXIT_CODES = """\b
Exit codes:
  0  PASS, bootstrap, or done
  1  BLOCK
  2  wrong use or configuration
  3  INCONCLUSIVE
  4  something outside failed (store, disk, machine, signal)
"""
OUTSIDE = 4


class OneLine(click.ClickException):
    """An error as its user sees it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(visible(" ".join(message.split())))
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it on the class and reads the instance's

    def show(self, file: Any = None) -> None:
        click.echo(f"canary: {self.format_message()}", err=True, file=file)


class Edge(click.Group):
    """A group that turns expected errors into one line and an exit code; any other is a bug and keeps its traceback."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **options)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise misused(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise misused(error) from error
        except (KeyboardInterrupt, Terminated) as error:  # click would exit with 1, which means BLOCK
            how = str(error) or "interrupted"
            # What can be taken up where it stopped (`canary ab`) has said so by itself.
            raise OneLine(f"{how}; `canary {ctx.invoked_subcommand}` can be run again", OUTSIDE) from error
        except BrokenPipeError:
            reader_left()
            ctx.exit(OUTSIDE)
        except Exception as error:
            line = as_one_line(error)
            if line is None:
                raise
            raise line from error


@contextmanager
def unwinding() -> Iterator[None]:
    """Let SIGTERM, SIGHUP and Ctrl-C unwind where the command waits, for commands that must end what they started; no
    further signal interrupts that. A signal that is already ignored (`nohup`, a shell's background job) stays
    ignored."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, *STOPPING)}
    expect()
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, notice)
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        if came():
            for each in before:
                if signal.getsignal(each) is notice:
                    signal.signal(each, signal.SIG_IGN)  # until this process has ended
        traceback.clear_frames(error.__traceback__)  # a half-read answer of the database in them would keep it locked
        _close_own()
        raise
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) is notice:
                signal.signal(each, handler)
        expect()


def _close_own() -> None:
    """End the runs that this process still holds open; without MLflow it has made none."""
    if "mlflow" in sys.modules or "MLFLOW_RUN_ID" in os.environ:
        from canary_mlflow.registry.sessions.leftovers import close_own

        with suppress(Exception):  # the store may be what was waited for; the next process ends them
            close_own()


def as_one_line(error: Exception) -> OneLine | None:
    """The line for an expected error; None for click's own and for bugs."""
    error = folder_gone(error) or error
    if isinstance(error, CanaryError):
        return OneLine(str(error), error.exit_code)
    if isinstance(error, OSError):
        return OneLine(f"{type(error).__name__}: {error}", OUTSIDE)
    if getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE":  # MLflow's code for values that make no sense
        return OneLine(str(error), UsageError.exit_code)
    if is_store_error(error):
        return OneLine(f"store: {one_line(error)}", OUTSIDE)
    return None


def misused(error: click.UsageError) -> OneLine:
    """One line for what click says in four, usage first."""
    command = error.ctx.command_path if error.ctx else "canary"
    found = error.format_message().rstrip(".")
    subject = command.removeprefix("canary").strip()
    where = f"{subject}: " if subject else ""
    said = f"{where}{found[:1].lower()}{found[1:]}"
    joined = said if said.endswith("?") else f"{said};"
    return OneLine(f"{joined} `{command} --help` says what it takes", UsageError.exit_code)


def is_store_error(error: Exception) -> bool:
    """Whether MLflow or its database raised the error; neither is imported to find out."""
    homes = {base.__module__.partition(".")[0] for base in type(error).__mro__}
    return bool(homes & {"mlflow", "sqlalchemy"})


def reader_left() -> None:
    """Keep Python from complaining when it flushes stdout at exit after the reader of a pipe has left (`… | head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
