"""What the commands that measure have in common: their options, and how they end. PyTorch is not imported here."""

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from simulator.errors import InputError

DEFAULT_MODEL = {"cuda": "llama-3.1-8b", "cpu": "tiny"}

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Span(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic since click 8.2
    """Seconds as `90`, `120s`, `2m` or `1h`."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds as a number."""
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*(s|m|min|h)?\s*", str(value))
        if found is None:
            self.fail(f"{value!r} is no time; write 120s, 2m or plain seconds", param, ctx)
        return float(found[1]) * {"m": 60, "min": 60, "h": 3600}.get(found[2], 1)


def model_options(verb: str) -> Decorator:
    """Which model, on what and with which kernel; `verb` is what the command does with them: `time`, `run`."""
    return _all(
        click.option("--model", metavar="NAME_OR_PATH",
                     help="A known model, a YAML, or a config.json.  [default: llama-3.1-8b; tiny on a CPU]"),
        click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True,
                     help="cpu: try the program without a GPU."),
        click.option("--attention", type=click.Choice(["auto", "fa2", "fa3", "torch"]), default="auto",
                     show_default=True, help=f"The kernel to {verb}; auto: fa3 where it runs, else fa2."),
        click.option("--tp", "--tensor-parallel", "tensor_parallel", type=click.IntRange(min=1), default=1,
                     show_default=True, metavar="RANKS",
                     help=f"{verb.capitalize()} the shapes of one of so many tensor-parallel ranks."),
        click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]),
                     help="Of weights, activations and KV cache.  [default: bfloat16; float32 on a CPU]"),
    )  # fmt: skip


def output_options(kept: str, overwritten: str) -> Decorator:
    """What becomes of an earlier run, and how much is said; `kept` is what --resume goes on with."""
    return _all(
        click.option("--resume", is_flag=True, help=f"Keep the rows of {kept}."),
        click.option("--force", is_flag=True, help=f"Overwrite an existing {overwritten}."),
        click.option("--quiet", is_flag=True, help="No progress and no summary."),
    )


def _all(*options: Decorator) -> Decorator:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):  # --help lists them as they are written
            command = option(command)
        return command

    return decorate


@contextmanager
def exit_statuses(name: str) -> Iterator[None]:
    """End a command with one line instead of a traceback: 2 for InputError, 1 for an interruption or a full disk.

    A job that is stopped by its time limit (SIGTERM) keeps what it has as one that is stopped by Ctrl-C does.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except InputError as error:
        _end(f"{name}: {error}", 2)
    except KeyboardInterrupt as error:
        _end(f"{name}: interrupted{f'; {error}' if str(error) else ''}", 1)
    except OSError as error:
        _end(f"{name}: {error}", 1)


def _end(line: str, status: int) -> None:
    click.echo(line, err=True)
    sys.exit(status)


def _interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    raise KeyboardInterrupt
