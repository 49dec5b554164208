"""Jobs of tasks that are known by their names."""

from __future__ import annotations

from typing import Any

import pytest

from duetime import Duetime
from duetime.errors import InvalidArguments, InvalidInput, KeyConflict, UnknownTask
from tests.conftest import Backend


async def test_a_job_is_enqueued_by_the_name_of_its_task(backend: Backend) -> None:
    app = Duetime(backend.url)

    @app.task(name="greet", queue="mail", timeout="5s", expires="1h")
    async def greet(name: str) -> None: ...

    handle = await app.jobs.enqueue("greet", {"name": "Bo"}, key="bo", priority=1)
    again = await app.jobs.enqueue("greet", {"name": "Bo"}, key="bo")
    [many] = await app.enqueue_many([app.jobs.define("greet", {"name": "Al"})])

    job = await app.jobs.get(handle.id)
    plain = await app.jobs.get((await greet.enqueue("Bo")).id)
    assert (job.queue, job.priority, job.args) == ("mail", 1, {"name": "Bo"})
    assert (job.timeout, job.max_attempts) == (plain.timeout, plain.max_attempts)
    assert job.expires_at is not None
    assert (again.id, again.action) == (handle.id, "existing")
    assert (await app.jobs.get(many.id)).args == {"name": "Al"}
    with pytest.raises(KeyConflict):
        await app.jobs.enqueue("greet", {"name": "Bo"}, key="bo", on_conflict="reject")
    with pytest.raises(UnknownTask):
        await app.jobs.enqueue("nobody.knows")
    with pytest.raises(InvalidInput, match="reserved"):
        await app.jobs.enqueue("duetime.rearm")
    with pytest.raises(InvalidArguments):
        await app.jobs.enqueue("greet", {"nam": "Bo"})
    await app.close()


@pytest.mark.parametrize("args", [[1], [], "Bo", 0, [("name", "Bo")], {1: 2}])
async def test_arguments_that_have_no_names_are_refused(backend: Backend, args: Any) -> None:
    app = Duetime(backend.url)

    @app.task(name="greet")
    async def greet(name: str = "Al") -> None: ...

    with pytest.raises(InvalidInput, match=r"^args must be a mapping of .* \{'order': 7\}, got "):
        await app.jobs.enqueue("greet", args)
    with pytest.raises(InvalidInput, match=r"^args must be a mapping"):
        app.jobs.define("greet", args)
    assert await app.jobs.list() == []
    await app.close()
