"""Pages and their cursors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from duetime.domain.page import (
    Id,
    Moment,
    Page,
    check_limit,
    make_cursor,
    make_page,
    read_cursor,
)
from duetime.errors import InvalidInput

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def page(numbers: list[int], limit: int) -> Page[int]:
    return make_page(numbers, limit=limit, order="numbers", position=lambda number: (number,))


def test_a_page_is_a_list() -> None:
    found = page([3, 2, 1], 5)

    assert found == [3, 2, 1]
    assert found.next is None


def test_one_more_than_the_limit_leads_to_a_next_page() -> None:
    found = page([3, 2, 1], 2)

    assert found == [3, 2]
    assert read_cursor(found.next, order="numbers", shape=tuple[Id]) == (2,)


def test_as_many_as_the_limit_are_the_last_page() -> None:
    assert page([3, 2], 2).next is None


def test_a_cursor_keeps_moments_and_nothing() -> None:
    shape = tuple[Moment | None, Id]

    assert read_cursor(make_cursor("due", (NOON, 7)), order="due", shape=shape) == (NOON, 7)
    assert read_cursor(make_cursor("due", (None, 7)), order="due", shape=shape) == (None, 7)


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "7",
        "næ",
        "a" * 5000,
        7,
        make_cursor("else", (7,)),
        make_cursor("numbers", ("7",)),
        make_cursor("numbers", (-1,)),
        make_cursor("numbers", (2**63,)),
        make_cursor("numbers", (7, 7)),
        make_cursor("numbers", ()),
    ],
)
def test_what_is_no_cursor_of_the_list_is_refused(cursor: Any) -> None:
    with pytest.raises(InvalidInput, match="after= must be the cursor that an earlier page"):
        read_cursor(cursor, order="numbers", shape=tuple[Id])


def test_a_cursor_with_a_nul_or_a_naive_time_is_refused() -> None:
    with pytest.raises(InvalidInput):
        read_cursor(make_cursor("names", ("a\0b",)), order="names", shape=tuple[str])
    with pytest.raises(InvalidInput):
        read_cursor(
            make_cursor("due", (NOON.replace(tzinfo=None),)), order="due", shape=tuple[Moment]
        )


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, "7", 7.0, None])
def test_a_limit_is_a_whole_number_up_to_ten_thousand(limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit must be 1 to 10,000"):
        check_limit(limit)
