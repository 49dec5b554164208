"""What is stored of an error: its code, its message, and those of the errors that it wraps."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.exc import IntegrityError

from duetime import Duetime, JobInfo, JobState, Retry
from tests.waiting import until


async def fail_with(app: Duetime, raise_it: Any) -> JobInfo:
    @app.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise_it()

    async with app.worker():
        job = await fail.enqueue()

        async def is_dead() -> bool:
            return (await job.get()).state is JobState.DEAD

        await until(is_dead)
    return await job.get()


async def test_sqlalchemys_error_keeps_its_code_link_class_and_cause(app: Duetime) -> None:
    def insert_twice() -> None:
        engine = sqlalchemy.create_engine("sqlite://")
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("create table note (id integer primary key)"))
            for _ in range(2):
                connection.execute(sqlalchemy.text("insert into note values (1)"))

    info = await fail_with(app, insert_twice)

    assert info.error_code == IntegrityError.code == "gkpj"
    assert info.error is not None
    assert info.error.startswith("IntegrityError: (sqlite3.IntegrityError) UNIQUE constraint fail")
    assert re.search(r"Background on this error at: https://sqlalche.me/e/\d+/gkpj", info.error)
    assert "caused by" not in info.error, "its message repeats the cause"
    traceback = info.history[0].traceback or ""
    assert "sqlite3.IntegrityError: UNIQUE constraint failed: note.id" in traceback
    assert "The above exception was the direct cause" in traceback


@pytest.mark.parametrize("kind", [RuntimeError, Retry])
async def test_the_message_names_the_errors_that_it_wraps(
    app: Duetime, kind: type[Exception]
) -> None:
    def pay() -> None:
        try:
            try:
                raise TimeoutError
            except TimeoutError as error:
                raise ConnectionError("the bank does not answer") from error
        except ConnectionError as error:
            raise kind("not paid") from error

    info = await fail_with(app, pay)

    assert info.error_code == {RuntimeError: "RuntimeError", Retry: "retry"}[kind]
    assert info.error == (
        "not paid; caused by ConnectionError: the bank does not answer; caused by TimeoutError"
    )


async def test_an_error_with_a_method_named_code_is_known_by_its_class(app: Duetime) -> None:
    class RpcError(Exception):
        def code(self) -> int:
            return 14

    def call() -> None:
        raise RpcError("unavailable")

    info = await fail_with(app, call)

    assert (info.error_code, info.error) == ("RpcError", "unavailable")


async def test_a_long_message_keeps_its_beginning_and_its_end(app: Duetime) -> None:
    def insert() -> None:
        raise ValueError("duplicate key" + 10_000 * "x" + "see the manual")

    info = await fail_with(app, insert)

    assert info.error is not None
    assert info.error.startswith("duplicate key")
    assert info.error.endswith("see the manual")
    assert len(info.error) < 4_100
