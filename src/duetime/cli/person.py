"""Who changes things: the option `--by`."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import click

C = TypeVar("C", bound=Callable[..., Any])


def by_option(command: C) -> C:
    """Add `--by`, which is you if it is not given."""
    return click.option(
        "--by",
        metavar="NAME",
        default=me,
        show_default=False,
        help="Who makes the change.  [default: you]",
    )(command)


def me() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()
