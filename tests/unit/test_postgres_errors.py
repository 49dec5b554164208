"""Which refusals of PostgreSQL are about the values, which pass, and which are neither."""

from __future__ import annotations

import psycopg
import pytest

from duetime.errors import (
    DatabaseUnreachable,
    DataRejected,
    StorageError,
    TransactionConflict,
    TransientError,
)
from duetime.storage.postgres.connection import translate_errors


def told(sqlstate: str) -> type[BaseException]:
    error = psycopg.errors.lookup(sqlstate)("no")
    with pytest.raises(StorageError) as caught, translate_errors():
        raise error
    return caught.type


@pytest.mark.parametrize(
    "sqlstate",
    [
        "22003",  # numeric value out of range
        "22P05",  # untranslatable character
        "23505",  # unique violation
        "23514",  # check violation
        "54000",  # program limit exceeded
        "P0001",  # raised by a trigger
    ],
)
def test_what_is_about_the_values_is_refused_for_good(sqlstate: str) -> None:
    assert told(sqlstate) is DataRejected


@pytest.mark.parametrize(
    "sqlstate",
    [
        "25006",  # read-only transaction: a standby, or a failover
        "25P03",  # idle in transaction for too long: the session is gone
        "40003",  # statement completion unknown
        "53100",  # disk full
        "53300",  # too many connections
        "55006",  # object in use
        "57014",  # query cancelled
        "57P01",  # admin shutdown
        "57P03",  # cannot connect now
        "58030",  # I/O error
    ],
)
def test_what_is_about_the_server_may_pass(sqlstate: str) -> None:
    assert issubclass(told(sqlstate), TransientError)


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03"])
def test_what_is_about_others_is_a_conflict(sqlstate: str) -> None:
    assert told(sqlstate) is TransactionConflict


@pytest.mark.parametrize("sqlstate", ["42501", "42P01", "42703", "XX000", "XX001", "26000"])
def test_the_rest_is_neither_final_nor_passes_by_itself(sqlstate: str) -> None:
    assert not issubclass(told(sqlstate), (TransientError, DataRejected))


def test_a_read_only_database_is_named() -> None:
    with pytest.raises(TransientError, match="read-only") as caught, translate_errors():
        raise psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT")

    assert caught.type is not DatabaseUnreachable
