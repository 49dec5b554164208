"""Whole numbers on the command line, with errors that say what is wanted."""

from __future__ import annotations

from typing import Any

import click

from duetime.settings import read_whole_number


class Number(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A whole number from `least` to `most`."""

    name = "number"

    def __init__(self, least: int, most: int = 2**31 - 1) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        number = read_whole_number(str(value))
        if number is None:
            self.fail(f"{value[:40]!r} is not an integer such as 20.", param, ctx)
        if not self._least <= number <= self._most:
            self.fail(f"{number} must be between {self._least:,} and {self._most:,}.", param, ctx)
        return number


JOB_ID = Number(1, 2**63 - 1)
