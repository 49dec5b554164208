"""Lists in pages: the options `--limit` and `--after`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from duetime.cli.number import Number
from duetime.cli.output import echo, print_json
from duetime.domain.page import MAX_LIMIT, Page

T = TypeVar("T")


def paged(default: int = 20) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a list its page: `--limit` and `--after`."""
    limit = click.option(
        "--limit",
        type=Number(1, MAX_LIMIT),
        default=default,
        metavar="N",
        help=f"How many, at most {MAX_LIMIT:,}.  [default: {default:,}]",
    )
    after = click.option(
        "--after", metavar="CURSOR", help="The next page: the cursor that the last one ended with."
    )
    return lambda command: limit(after(command))


def needs_table(
    page: Page[T], *, json: bool, empty: str, plain: Callable[[T], Any] | None = None
) -> bool:
    """Print what every list has in common: its next page, its JSON, or that it is empty.

    `plain`: what to write as the JSON of an item, if not the item itself. Returns whether the items
    have yet to be printed, as a table.
    """
    show_next(page)
    if json:
        print_json(page if plain is None else [plain(item) for item in page])
        return False
    if not page:
        echo(empty)
        return False
    return True


def show_next(page: Page[Any]) -> None:
    """Print where the next page begins: on standard error, since it is not part of the list."""
    if page.next is not None:
        echo(f"More: --after {page.next}", err=True)
