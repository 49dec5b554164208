"""One page of a list, and the cursor that leads to the next one."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec

from duetime.domain.checks import check_text
from duetime.errors import InvalidInput

T = TypeVar("T")

DEFAULT_LIMIT = 100
MAX_LIMIT = 10_000
MAX_CURSOR_LENGTH = 4000

Id = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Page(list[T]):
    """A list of results. `next` is the cursor of the page after it, None on the last page.

    `examined` is set if the search stopped before the page was full, so as not to take too long:
    how many rows it had examined. It continues from `next`.

    >>> page = make_page([3, 2, 1], limit=2, order="jobs", position=lambda number: (number,))
    >>> page
    [3, 2]
    >>> read_cursor(page.next, order="jobs", shape=tuple[Id])
    (2,)
    """

    __slots__ = ("examined", "next")

    def __init__(
        self,
        items: Iterable[T] = (),
        *,
        next: str | None = None,  # noqa: A002
        examined: int | None = None,
    ) -> None:
        super().__init__(items)
        self.next = next
        self.examined = examined


def make_page(
    found: Sequence[T],
    *,
    limit: int,
    order: str,
    position: Callable[[T], tuple[Any, ...]],
) -> Page[T]:
    """Return the first `limit` of what was found. If more was found, there is a next page.

    `order`: in which order the list is; `position`: where in that order an item stands.
    """
    if len(found) <= limit:
        return Page(found)
    shown = found[:limit]
    return Page(shown, next=make_cursor(order, position(shown[-1])))


def check_limit(limit: Any) -> int:
    """Return `limit` if so many results may be asked for at once; raise `InvalidInput`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit must be 1 to {MAX_LIMIT:,}, got {limit!r:.60}.")
    return limit


def make_cursor(order: str, position: tuple[Any, ...]) -> str:
    """Return the position after which a page begins, as opaque text."""
    raw = msgspec.json.encode([order, *position])
    return urlsafe_b64encode(raw).decode().rstrip("=")


def read_cursor(cursor: str | None, *, order: str, shape: Any) -> Any:
    """Return the position that `make_cursor` was given, a tuple of the given shape.

    None: from the beginning.
    """
    if cursor is None:
        return None
    try:
        if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR_LENGTH:
            raise ValueError
        raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        found, *values = msgspec.json.decode(raw, type=list[Any])
        if found != order:
            raise ValueError
        for value in values:
            if isinstance(value, str):
                check_text(value, what="The cursor")
        return msgspec.convert(values, shape)
    except ValueError:
        raise InvalidInput(
            "after= must be the cursor that an earlier page of the same list ended with (`next`), "
            f"got {cursor!r:.100}."
        ) from None
