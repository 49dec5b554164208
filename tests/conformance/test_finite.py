"""NaN and infinity are refused wherever a value is stored: JSON would make null of them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from duetime import Context, Duetime, Flow
from duetime.errors import InvalidInput, InvalidResult
from tests.conftest import Backend

DUE = datetime(2030, 1, 1, tzinfo=UTC)
UNFINITE: list[Any] = [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("Infinity")]


@pytest.mark.parametrize("number", UNFINITE, ids=str)
async def test_no_value_that_is_given_holds_one(backend: Backend, number: Any) -> None:
    app = Duetime(backend.url, migrate=True)

    @app.task(name="add")
    async def add(number: Any) -> None: ...

    with pytest.raises(InvalidInput, match="which JSON does not support"):
        await add.enqueue(number=number)
    with pytest.raises(InvalidInput, match="which JSON does not support"):
        await app.enqueue_many([add.job(number=[{"deep": number}])])
    with pytest.raises(InvalidInput, match="which JSON does not support"):
        await app.schedules.put("s", add, "@daily", args={"number": number})
    with pytest.raises(InvalidInput, match="which JSON does not support"):
        await app.schedules.put("s", "unknown", "@daily", args={"number": number})
    with pytest.raises(InvalidInput, match="which JSON does not support"):
        await app.subjects.put("s", due=DUE, data={"price": [number]})

    assert await app.schedules.list() == []
    await app.close()


async def test_a_result_and_progress_are_not_made_null(backend: Backend) -> None:
    app = Duetime(backend.url, migrate=True)
    refused: list[str] = []

    @app.task(name="mean")
    async def mean(ctx: Context) -> dict[str, float]:
        try:
            await ctx.progress({"done": math.nan})
        except InvalidInput as error:
            refused.append(str(error))
        await ctx.progress({"done": None, "note": "NaN"})
        return {"mean": math.nan}

    async with app.worker():
        job = await mean.enqueue()
        with pytest.raises(InvalidResult, match="its result was not stored: The result holds nan"):
            await job.result()
        info = await job.get()
    await app.close()

    assert refused == [
        "The progress holds nan, which JSON does not support. Use None or a finite number."
    ]
    assert info.progress == {"done": None, "note": "NaN"}
    assert (info.state, info.error_code) == ("completed", "result_not_stored")
    assert (
        info.error
        == "The result holds nan, which JSON does not support. Use None or a finite number."
    )


@pytest.mark.parametrize("text", ["1e999", "[-1.8E+308]", '{"a": 1' + 400 * "0" + ".5}"])
async def test_json_that_is_given_as_text_holds_none(backend: Backend, text: str) -> None:
    app = Duetime(backend.url, migrate=True)
    raw = msgspec.Raw(text.encode())

    @app.task(name="add")
    async def add(small: int, raw: msgspec.Raw) -> None: ...

    @app.flow(name="wait")
    async def wait(flow: Flow) -> None:
        await flow.wait_for("number")

    run = await wait.start()
    refused = "holds a number that is too large to be read"
    with pytest.raises(InvalidInput, match=f"argument 'raw' {refused}"):
        await add.enqueue(1, raw)
    with pytest.raises(InvalidInput, match=refused):
        await app.schedules.put("s", "unknown", "@daily", args={"number": raw})
    with pytest.raises(InvalidInput, match=refused):
        await app.subjects.put("s", due=DUE, data={"price": raw})
    with pytest.raises(InvalidInput, match=refused):
        await run.signal("number", raw)
    with pytest.raises(InvalidInput, match=refused):
        await app.flows.signal_all("number", raw, correlation="c")
    with pytest.raises(InvalidInput, match="NUL"):
        await add.enqueue(1, msgspec.Raw(b'"\\u0000"'))
    await run.signal("number", msgspec.Raw(b"[1.7e308, null]"))

    assert [job.id for job in await app.jobs.list()] == [run.id]
    await app.close()
