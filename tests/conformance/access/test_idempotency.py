"""Idempotency keys on every backend: a request is carried out once, however often it is sent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from duetime import Duetime
from duetime.api.idempotency import KeyedRequest
from duetime.domain.access.idempotency import MAX_ANSWER_BYTES, Answer
from duetime.errors import (
    AnswerNotKept,
    IdempotencyKeyReused,
    InvalidInput,
    RequestInProgress,
)
from duetime.storage.access.pruning import prune_access
from tests.conftest import Backend, query

START = "2030-03-02T00:00Z"
REQUEST: dict[str, Any] = {
    "visitor": "token:ci",
    "method": "POST",
    "path": "/api/v1/jobs",
    "key": "k-1",
    "body": b'{"task": "work"}',
}


async def send(app: Duetime, number: int = 1, **changes: Any) -> Answer:
    """Carry out a request that answers with its number."""
    async with app._idempotency.begin(**REQUEST | changes) as request:
        if request.answer is not None:
            return request.answer
        answer = Answer(201, f'{{"number": {number}}}'.encode(), {"location": f"/jobs/{number}"})
        await request.finish(answer.status, answer.body, headers=answer.headers)
        return answer


async def test_a_repeated_request_gets_the_first_answer(app: Duetime) -> None:
    first, second = await send(app, 1), await send(app, 2)

    assert first == second
    assert second == Answer(201, b'{"number": 1}', {"location": "/jobs/1"})


@pytest.mark.parametrize(
    "change",
    [{"visitor": "token:other"}, {"method": "PUT"}, {"path": "/api/v1/flows"}, {"key": "k-2"}],
)
async def test_a_key_stands_for_one_visitor_method_and_path(
    app: Duetime, change: dict[str, str]
) -> None:
    await send(app, 1)

    assert (await send(app, 2, **change)).body == b'{"number": 2}'


@pytest.mark.parametrize("change", [{"body": b"{}"}, {"query": "dry_run=true"}])
async def test_another_request_with_the_same_key_is_refused(
    app: Duetime, change: dict[str, Any]
) -> None:
    await send(app, 1)

    with pytest.raises(IdempotencyKeyReused, match="Use a new key"):
        await send(app, 2, **change)


@pytest.mark.parametrize("key", ["", "a" * 256, "a b", "ä", "a\x00b", None])
async def test_a_key_that_is_no_key_is_refused(app: Duetime, key: Any) -> None:
    with pytest.raises(InvalidInput, match="Idempotency-Key"):
        await send(app, key=key)


async def test_quotes_around_a_key_do_not_count(app: Duetime) -> None:
    await send(app, 1, key="k-1")

    assert (await send(app, 2, key='"k-1"')).body == b'{"number": 1}'


async def test_a_second_request_waits_for_the_first_and_gets_its_answer(
    app: Duetime, backend: Backend
) -> None:
    other = Duetime(backend.url)
    begun, go = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with app._idempotency.begin(**REQUEST) as request:
            begun.set()
            await go.wait()
            await request.finish(200, b"first")

    running = asyncio.create_task(first())
    await begun.wait()
    second = asyncio.create_task(send(other, 2, wait=30.0))
    with pytest.raises(RequestInProgress) as caught:
        await send(other, 3, wait=0.0)
    go.set()
    await running

    assert (await second).body == b"first"
    assert 50 <= caught.value.retry_in <= 60
    await other.close()


async def test_a_request_that_failed_may_be_sent_again(app: Duetime) -> None:
    async def fail() -> None:
        async with app._idempotency.begin(**REQUEST):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await fail()
    async with app._idempotency.begin(**REQUEST):
        pass  # It ends without an answer.

    assert (await send(app, 2, wait=0.0)).body == b'{"number": 2}'


async def test_a_request_that_is_cancelled_frees_its_key(app: Duetime) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        async with app._idempotency.begin(**REQUEST):
            begun.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(hang())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (await send(app, 2, wait=0.0)).body == b'{"number": 2}'


async def test_the_key_of_a_dead_process_is_taken_over_after_a_minute(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        dead = app._idempotency.begin(**REQUEST)
        request: KeyedRequest = await dead.__aenter__()
        await world.advance("59s")
        with pytest.raises(RequestInProgress):
            await send(app, 2, wait=0.0)
        await world.advance("1s")
        with pytest.raises(IdempotencyKeyReused):
            await send(app, 2, body=b"{}")
        taken = await send(app, 2)
        # It was not dead, only slow: its answer does not replace the one that was given.
        await request.finish(200, b"late")
        again = await send(app, 3)
        await dead.__aexit__(None, None, None)

    assert taken.body == again.body == b'{"number": 2}'


async def test_who_was_taken_over_does_not_free_the_key_of_the_other(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        slow = app._idempotency.begin(**REQUEST)
        await slow.__aenter__()
        await world.advance("1m")
        async with app._idempotency.begin(**REQUEST) as request:
            await slow.__aexit__(None, None, None)
            with pytest.raises(RequestInProgress):
                await send(app, 3, wait=0.0)
            await request.finish(200, b"second")

        assert (await send(app, 4)).body == b"second"


async def test_of_many_at_once_one_is_carried_out(app: Duetime, backend: Backend) -> None:
    apps = [app, *(Duetime(backend.url) for _ in range(3))]
    ran: list[int] = []

    async def work(one: Duetime, number: int) -> bytes:
        async with one._idempotency.begin(**REQUEST, wait=60.0) as request:
            if request.answer is None:
                ran.append(number)
                await request.finish(200, str(number).encode())
                return str(number).encode()
            return request.answer.body

    answers = await asyncio.gather(*(work(apps[n % 4], n) for n in range(24)))
    for other in apps[1:]:
        await other.close()

    assert len(ran) == 1
    assert set(answers) == {str(ran[0]).encode()}


PROCESS = """
import asyncio, sys
from duetime import Duetime

async def main():
    app = Duetime(sys.argv[1])
    begin = app._idempotency.begin(
        visitor="ann", method="POST", path="/", key="k-1", body=b"", wait=60.0)
    print("ready", flush=True)
    sys.stdin.readline()
    async with begin as request:
        if request.answer is None:
            print("ran")
            await request.finish(200, b"done")
    await app.close()

asyncio.run(main())
"""


def test_of_two_processes_at_once_one_carries_it_out(backend: Backend) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROCESS, backend.url],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(2)
        ]
        for process in processes:
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        printed = [process.communicate(timeout=60)[0] for process in processes]

    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(printed) == ["", "ran\n"]


async def test_an_answer_is_kept_for_a_day_and_then_pruned(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        await send(app, 1)
        await world.advance("23h59m")
        kept = await send(app, 2)
        early = await _prune(app)
        await world.advance("1m")
        fresh = await send(app, 3)
        await world.advance("24h")
        late = await _prune(app)

    assert (kept.body, fresh.body) == (b'{"number": 1}', b'{"number": 3}')
    assert (early, late) == (0, 1)


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (b"x" * (MAX_ANSWER_BYTES + 1), {}),
        (b"dt_secret", {"secret": True}),
        (b"\xff\x00", {}),
    ],
)
async def test_an_answer_that_is_not_kept_is_not_carried_out_again(
    app: Duetime, backend: Backend, body: bytes, options: dict[str, Any]
) -> None:
    async with app._idempotency.begin(**REQUEST) as request:
        await request.finish(201, body, **options)

    with pytest.raises(AnswerNotKept, match="carried out before, with the status 201"):
        await send(app, 2)
    assert query(backend, "select status, body from duetime.idempotency") == [(201, None)]


async def test_if_the_answer_cannot_be_kept_the_key_is_not_free_at_once(
    app: Duetime, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    rename = (
        "alter table duetime.{} rename to " + ("" if backend.is_postgres else "duetime_") + "{}"
    )
    async with app._idempotency.begin(**REQUEST) as request:
        await asyncio.to_thread(query, backend, rename.format("idempotency", "away"))
        await request.finish(201, b"done")
        await asyncio.to_thread(query, backend, rename.format("away", "idempotency"))

    assert "idempotency_answer_lost" in [getattr(record, "event", "") for record in caplog.records]
    with pytest.raises(RequestInProgress):
        await send(app, 2, wait=0.0)


async def test_any_text_is_answered_again_as_it_was(app: Duetime) -> None:
    body = '{"text": "\\u0000 ü 漢 \\" %s ?"}'.encode()
    async with app._idempotency.begin(**REQUEST) as request:
        await request.finish(200, body)

    assert (await send(app, 2)).body == body


async def _prune(app: Duetime) -> int:
    pruned: int = await app._perform(
        lambda dialect: prune_access(
            dialect, app.settings.retention["audit"], idle=app.settings.session_idle
        )
    )
    return pruned
