"""Dead jobs and missed ticks are reported through a channel, once for each window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from duetime import Constant, Context, Duetime, InvalidInput
from duetime.alerts import AlertFollower
from duetime.channels.channel import Message, NotSent
from duetime.engine.worker import Worker
from tests.conformance.mailbox import Mailbox
from tests.waiting import until, until_true


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event is reported at once, and checked for often."""
    monkeypatch.setattr("duetime.alerts.SETTLE", timedelta(0))
    monkeypatch.setattr("duetime.alerts.CHECK_SECONDS", 0.05)


@asynccontextmanager
async def unwatched(app: Duetime) -> AsyncIterator[None]:
    """A worker of the app that knows nothing of its alerts."""
    other = Duetime(app.settings.database)
    other.tasks.update(app.tasks)
    async with other.worker():
        yield
    await other.close()


async def all_dead(app: Duetime, task: str, count: int) -> bool:
    return len(await app.jobs.list(state="dead", task=task, limit=count)) == count


async def test_a_burst_of_dead_jobs_is_one_message(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    app.alert("ops", channels={"mail": "ops@example.org"}, on=["job_dead"], every="1h")

    @app.task(name="shop.pay", retry=Constant("0s", max_attempts=1))
    async def pay() -> None:
        raise ConnectionError("secret of the bank")

    async with app.worker(queues=["other"]):
        pass  # From now on it is watched.
    jobs = await app.enqueue_many([pay.job() for _ in range(100)])
    async with unwatched(app):
        await until(lambda: all_dead(app, "shop.pay", 100))
    async with app.worker():
        await until_true(lambda: mail.messages)
        await pay.enqueue()
        await until(lambda: all_dead(app, "shop.pay", 101))
    [message] = mail.messages

    assert message.title == "100 jobs died"
    assert message.body == (
        f"100 of shop.pay: ConnectionError. The last one: duetime jobs get {jobs[-1].id}"
    )
    assert message.address == "ops@example.org"
    assert message.recipient == "ops"
    assert message.event == "alert.raised"
    assert message.data["job_dead"][0]["count"] == 100
    assert "secret" not in repr(message)


async def completed(app: Duetime, task: str) -> bool:
    return bool(await app.jobs.list(state="completed", task=task))


async def test_what_happens_within_the_window_is_in_the_next_message(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    app.alert("ops", channels=["mail"], every="1s")

    @app.task(name="pay", retry=Constant("0s", max_attempts=1))
    async def pay() -> None:
        raise ValueError("no")

    async with app.worker():
        await pay.enqueue()
        await until_true(lambda: len(mail.messages) == 1)
        await app.enqueue_many([pay.job(), pay.job()])
        await until_true(lambda: sum(map(dead_in, mail.messages)) == 3)
    first, *later = mail.messages

    assert dead_in(first) == 1
    assert len({message.key for message in mail.messages}) == len(mail.messages)
    assert (mail.times[1] - mail.times[0]) > timedelta(seconds=0.9)
    assert later


def dead_in(message: Message) -> int:
    return sum(group["count"] for group in message.data["job_dead"])


async def test_what_happened_before_the_alert_was_declared_is_not_reported(app: Duetime) -> None:
    @app.task(name="pay", retry=Constant("0s", max_attempts=1))
    async def pay() -> None:
        raise ValueError("no")

    async with app.worker():
        await pay.enqueue()
        await until(lambda: all_dead(app, "pay", 1))
    mail = Mailbox(app, "mail")
    app.alert("ops", channels=["mail"])
    async with app.worker():
        await pay.enqueue()
        await until_true(lambda: mail.messages)

    assert [dead_in(message) for message in mail.messages] == [1]


async def test_what_happened_while_no_worker_ran_is_reported_later(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    app.alert("ops", channels=["mail"])
    async with app.worker():
        pass

    @app.task(name="pay", retry=Constant("0s", max_attempts=1))
    async def pay() -> None:
        raise ValueError("no")

    await pay.enqueue()
    async with unwatched(app):
        await until(lambda: all_dead(app, "pay", 1))
    async with app.worker():
        await until_true(lambda: mail.messages)

    assert [dead_in(message) for message in mail.messages] == [1]


async def test_several_workers_send_one_message(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    app.alert("ops", channels=["mail"])

    @app.task(name="pay", retry=Constant("0s", max_attempts=1))
    async def pay() -> None:
        raise ValueError("no")

    async with app.worker() as one, app.worker() as two, app.worker() as three:
        workers = [one, two, three]
        await pay.enqueue()
        await until(lambda: completed(app, "duetime.alert"))
        checked = [await checks_pass(worker) for worker in workers]

    assert checked == [True] * 3
    assert len(mail.messages) == 1


async def checks_pass(worker: Worker) -> bool:
    """Check again, as the worker does: nothing may be due."""
    [alerts] = [one for one in worker._followers if isinstance(one, AlertFollower)]
    return await alerts.next_repair() is None


async def test_channels_are_tried_in_turn_and_again(app: Duetime) -> None:
    first, second = Mailbox(app, "first"), Mailbox(app, "second")
    first.failures = [NotSent("down", transient=True), NotSent("no", transient=False)]
    second.failures = [NotSent("down", transient=True, retry_after=timedelta(milliseconds=50))]
    app.alert("ops", channels={"first": None, "second": "b@example.org"})

    @app.task(name="pay", retry=Constant("0s", max_attempts=1))
    async def pay() -> None:
        raise ValueError("no")

    async with app.worker():
        await pay.enqueue()
        await until_true(lambda: second.messages)
        # A check at the same moment may have enqueued another, which finds nothing to report.
        *_, job = await app.jobs.list(task="duetime.alert")

    assert not first.messages
    assert len(set(first.tried + second.tried)) == 1
    assert (await app.jobs.get(job.id)).attempts == 2


async def test_missed_ticks_are_reported_with_the_reason(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    app.alert("ops", channels=["mail"], on=["tick_missed"])
    release = asyncio.Event()

    @app.schedule("* * * * * *", overlap="skip", name="nightly")
    @app.task(name="report")
    async def report(ctx: Context) -> None:
        await release.wait()

    async with app.worker():
        await until_true(lambda: mail.messages)
        release.set()
    [message] = mail.messages

    assert message.title == "1 tick did not run"
    assert message.body.startswith("1 of nightly: overlap. The last one: ")
    assert message.data["tick_missed"][0]["schedule"] == "nightly"
    assert message.data["job_dead"] == []


async def test_a_test_world_sends_alerts_when_they_are_due(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    mail = Mailbox(app, "mail")
    app.alert("ops", channels=["mail"], every="15m")

    @app.task(name="pay", retry=Constant("0s", max_attempts=1))
    async def pay() -> None:
        raise ValueError("no")

    async with app.testing(now="2026-03-02T12:00Z", max_extra_jobs=10) as world:
        await world.advance("1s")
        await pay.enqueue()
        await world.advance("1m")
        await pay.enqueue()
        await world.advance("1m")
        assert len(mail.messages) == 1
        await world.advance("15m")
        alerts = await app.jobs.list(task="duetime.alert")

    assert len(alerts) == 2
    assert [dead_in(message) for message in mail.messages] == [1, 1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"channels": ["sms"]}, "The app has no channel 'sms'. Add it first"),
        ({"channels": []}, "needs at least one channel"),
        ({"channels": ["mail"], "on": ["job_done"]}, "There is no event 'job_done' to alert on"),
        ({"channels": ["mail"], "on": []}, "needs at least one event"),
        ({"channels": ["mail"], "every": "0s"}, "every must be"),
        ({"channels": "mail"}, "must be a list of names"),
    ],
)
async def test_declarations_are_checked(options: dict[str, object], error: str) -> None:
    app = Duetime("sqlite:///never.db")
    Mailbox(app, "mail")

    with pytest.raises(InvalidInput, match=error):
        app.alert("ops", **options)  # type: ignore[arg-type]


async def test_a_name_is_taken_once() -> None:
    app = Duetime("sqlite:///never.db")
    Mailbox(app, "mail")
    app.alert("ops", channels=["mail"])

    with pytest.raises(InvalidInput, match="alert 'ops'"):
        app.alert("ops", channels=["mail"], every="1h")
