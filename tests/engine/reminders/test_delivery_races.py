"""Deliveries on real workers in real time: what happens at the same moment, and after a death."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Constant, Duetime, Sent
from duetime.channels.channel import Message, NotSent
from duetime.domain.reminders.delivery import DeliveryStatus, ReceiptStatus
from duetime.errors import InvalidInput
from tests import effects
from tests.conftest import Backend
from tests.engine.reminders.test_reminder_races import EVEN_LATE
from tests.waiting import until

SHORT: dict[str, Any] = {
    "lease": "20s",
    "heartbeat": "500ms",
    "rescue_every": "300ms",
    "grace": "2s",
}
HOUR = timedelta(hours=1)

on_both = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url, migrate=True, **SHORT)
    await app.store()
    yield app
    await app.close()


class Ledger:
    """A channel, the same for every worker: the outside world."""

    name = "mail"

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, float]] = []
        self.hang = False
        self.hanging = asyncio.Event()
        self.failure: NotSent | None = None

    async def send(self, message: Message) -> Sent:
        self.sent.append((message.key, message.recipient, time.monotonic()))
        if self.hang:
            self.hanging.set()
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        return Sent(f"id-{len(self.sent)}")

    async def close(self) -> None: ...

    @property
    def keys(self) -> Counter[str]:
        return Counter(key for key, _, _ in self.sent)

    @property
    def recipients(self) -> list[str]:
        return [recipient for _, recipient, _ in self.sent]


@asynccontextmanager
async def fleet(
    backend: Backend, *channels: Any, count: int = 4, **options: Any
) -> AsyncIterator[None]:
    """Workers, each with an application, a store and connections of its own."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            app = Duetime(backend.url, **SHORT)
            stack.push_async_callback(app.close)
            for channel in channels:
                app.add_channel(channel, **options)
            await stack.enter_async_context(app.worker(concurrency=10))
        yield


def soon(milliseconds: int = 500) -> datetime:
    return datetime.now(UTC) + timedelta(milliseconds=milliseconds)


async def sent(app: Duetime, count: int) -> bool:
    return len(await app.reminders.list(status="sent", limit=1000)) >= count


async def idle(app: Duetime) -> bool:
    """Whether no job waits or runs."""
    return not await app.jobs.list(state=["pending", "retrying", "running"], limit=1)


@on_both
async def test_an_acknowledgement_at_the_moment_of_the_escalation(
    backend: Backend, app: Duetime
) -> None:
    """Whichever comes first: nobody is told after it was acknowledged, nothing is told twice."""
    ledger = Ledger()
    many, wait = 40, timedelta(milliseconds=800)
    refs = [f"game:{n}" for n in range(many)]

    async def acknowledge(ref: str) -> None:
        [reminder] = await until(lambda: app.reminders.list(subject=ref, status="sent"))
        assert reminder.ended_at is not None
        moment = reminder.ended_at + wait + timedelta(milliseconds=random.uniform(-60, 60))
        await asyncio.sleep((moment - datetime.now(UTC)).total_seconds())
        await app.reminders.acknowledge(reminder.id, by="ann")

    async with fleet(backend, ledger):
        acknowledging = [asyncio.create_task(acknowledge(ref)) for ref in refs]
        for ref in refs:
            rule = EVEN_LATE | {"escalate": wait}
            await app.subjects.put(ref, due=soon(1000), remind=rule, recipients=["ann", "bob"])
        await asyncio.gather(*acknowledging)
        await until(lambda: idle(app))
    trails = [
        [event.action for event in reversed(await app.audit.list(entity=f"subject:{ref}"))]
        for ref in refs
    ]
    late = [
        trail
        for trail in trails
        if "reminder.escalated" in trail[trail.index("reminder.acknowledged") :]
    ]
    escalated = sum("reminder.escalated" in trail for trail in trails)
    print(f"\n{backend.name}: {escalated} of {many} escalated before they were acknowledged")

    assert late == []
    assert [key for key, count in ledger.keys.items() if count > 1] == []
    assert ledger.recipients.count("ann") == many
    assert ledger.recipients.count("bob") <= escalated


@on_both
async def test_an_escalation_outlives_the_workers_that_sent(backend: Backend, app: Duetime) -> None:
    ledger = Ledger()
    async with fleet(backend, ledger, count=1):
        await app.subjects.put(
            "game", due=soon(), remind=EVEN_LATE | {"escalate": "1s"}, recipients=["ann", "bob"]
        )
        await until(lambda: sent(app, 1))
    assert ledger.recipients == ["ann"]
    async with fleet(backend, ledger, count=2):
        await until(lambda: sent(app, 2))

    assert ledger.recipients == ["ann", "bob"]


@on_both
async def test_a_worker_that_dies_while_it_sends_is_followed_under_the_same_key(
    backend: Backend, app: Duetime
) -> None:
    """At least once: nobody knows whether the first one arrived. Then it escalates as ever."""
    ledger = Ledger()
    ledger.hang = True
    dying = Duetime(backend.url, **SHORT | {"lease": "2s"})
    dying.add_channel(ledger)
    worker = dying._make_worker(await dying.store())
    running = asyncio.create_task(worker.run())
    await worker.started.wait()
    rule = EVEN_LATE | {"escalate": "500ms"}
    await app.subjects.put("game", due=soon(), remind=rule, recipients=["ann", "bob"])
    await asyncio.wait_for(ledger.hanging.wait(), 30)
    # It stops without a word, as a process that is killed: its lease runs out.
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    ledger.hang = False
    async with fleet(backend, ledger, count=2):
        await until(lambda: sent(app, 2))
    deliveries = [await app.reminders.deliveries(n) for n in (1, 2)]
    await dying.close()

    assert ledger.recipients[0] == ledger.recipients[1] == "ann"
    assert ledger.recipients[-1] == "bob"
    assert len(set(ledger.keys)) == 2
    assert [[one.status for one in each] for each in deliveries] == [
        [DeliveryStatus.SENT],
        [DeliveryStatus.SENT],
    ]


@on_both
async def test_a_failed_send_escalates_once_whoever_settles_it(
    backend: Backend, app: Duetime
) -> None:
    ledger = Ledger()
    ledger.failure = NotSent("no such number", transient=False)
    people = ["ann", "bob", "cy", "dan"]
    async with fleet(backend, ledger):
        for n in range(10):
            await app.subjects.put(
                f"game:{n}",
                due=soon(),
                remind=EVEN_LATE | {"escalate": "1h"},
                recipients=people,
            )

        async def failed() -> bool:
            return len(await app.reminders.list(status="failed", limit=1000)) == 10 * len(people)

        await until(failed)

    assert Counter(ledger.recipients) == dict.fromkeys(people, 10)
    assert set(ledger.keys.values()) == {1}


@on_both
async def test_the_same_receipt_from_all_sides_is_taken_once(
    backend: Backend, app: Duetime
) -> None:
    first, second = Ledger(), Ledger()
    second.name = "call"
    async with fleet(backend, first, second):
        await app.subjects.put("game", due=soon(), remind=EVEN_LATE, recipients=["ann"])
        await until(lambda: sent(app, 1))
        counts = await asyncio.gather(
            *(app.receipt("id-1", "bounced", channel="mail") for _ in range(20))
        )
        await until(lambda: sent(app, 1))

        async def called() -> bool:
            return bool(second.sent)

        await until(called)

    assert sum(counts) == 1
    assert (len(first.sent), len(second.sent)) == (1, 1)


@on_both
async def test_receipts_at_the_moment_of_the_record_are_neither_lost_nor_doubled(
    backend: Backend, app: Duetime
) -> None:
    """By the key, before, while and after the send is recorded."""
    many = 80
    told: list[ReceiptStatus] = ["failed", "bounced", "delivered", "acknowledged"]
    tellings: list[asyncio.Task[int]] = []
    counts: Counter[str] = Counter()

    class Telling(Ledger):
        async def send(self, message: Message) -> Sent:
            counts[message.key] += 1
            status, wait = told[int(message.subject) % 4], random.uniform(0, 0.02)

            async def tell() -> int:
                await asyncio.sleep(wait)
                return await app.receipt(
                    message.key, status, key=message.key, channel=self.name, reason="told"
                )

            tellings.append(asyncio.create_task(tell()))
            await asyncio.sleep(random.uniform(0, 0.02))
            return Sent(message.key)

    first, second = Telling(), Ledger()
    second.name = "call"
    async with fleet(backend, first, second, count=2):
        for n in range(many):
            await app.subjects.put(str(n), due=soon(), remind=EVEN_LATE, recipients=["ann"])

        async def done() -> bool:
            found = await app.reminders.list(status="sent", limit=1000)
            return len(found) == many and len(second.sent) == many // 2

        await until(done)
        changed = await asyncio.gather(*tellings)
        found = await app.reminders.list(limit=1000)
        deliveries = {r.subject: await app.reminders.deliveries(r) for r in found}

    assert changed == [1] * many
    assert set(counts.values()) == {1}
    assert set(second.keys.values()) == {1}
    for subject, known in deliveries.items():
        status = told[int(subject) % 4]
        others = ["sent"] if int(subject) % 4 < 2 else []
        assert [one.status.value for one in known] == [status, *others]


@on_both
async def test_a_rate_holds_over_all_workers(backend: Backend, app: Duetime) -> None:
    ledger = Ledger()
    many, rate = 45, 15
    keep_places(backend)
    async with fleet(backend, ledger, rate=f"{rate}/s"):
        people = [f"p{n}" for n in range(many)]
        await app.subjects.put("game", due=soon(1000), remind=EVEN_LATE, recipients=people)
        await until(lambda: sent(app, many))
    times = sorted(place for (place,) in effects.run(backend.url, "select at from place"))
    fullest = max(sum(start <= at < start + 1_000_000 for at in times) for start in times)
    took = (times[-1] - times[0]) / 1e6
    print(f"\n{backend.name}: {many} in {took:.2f} s, at most {fullest} within a second")

    assert len(ledger.sent) == len(times) == many
    assert fullest <= rate
    assert took < 2 * many / rate, "not much slower than it may be"


def keep_places(backend: Backend) -> None:
    """Have the database note every place that is taken, in microseconds."""
    if not backend.is_postgres:
        effects.run(backend.url, "create table place (at integer)")
        effects.run(
            backend.url,
            "create trigger keep after insert on duetime_channel_use"
            " begin insert into place values (new.at); end",
        )
        return
    effects.run(backend.url, "create table place (at bigint)")
    effects.run(
        backend.url,
        "create function keep() returns trigger language plpgsql set search_path from current as"
        " $$ begin insert into place values (extract(epoch from new.at) * 1e6); return new; end $$",
    )
    effects.run(
        backend.url,
        "create trigger keep after insert on duetime.channel_use"
        " for each row execute function keep()",
    )


@on_both
async def test_a_snooze_and_a_change_at_the_same_moment(backend: Backend, app: Duetime) -> None:
    """Whichever comes first: what is closed is not sent again."""
    ledger = Ledger()
    many = 30
    async with fleet(backend, ledger):
        refs = [f"game:{n}" for n in range(many)]
        due = soon(2000)
        # In one go: put one by one on a busy machine, the last could come after their time.
        options: dict[str, Any] = {"due": due, "remind": "0s", "recipients": ["ann"]}
        await app.subjects.put_many([app.subjects.define(ref, **options) for ref in refs])
        await until(lambda: sent(app, many))
        first = len(ledger.sent)
        reminders = await app.reminders.list(limit=1000)
        changes = [
            change
            for one in reminders
            for change in (
                app.reminders.snooze(one.id, "3s", by="ann"),
                app.subjects.complete(one.subject),
            )
        ]
        random.shuffle(changes)
        answers = await asyncio.gather(*changes, return_exceptions=True)
        await until(lambda: idle(app))
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    print(f"\n{backend.name}: {len(refused)} of {many} snoozes came too late")
    statuses = Counter(one.status.value for one in await app.reminders.list(limit=1000))

    assert {type(answer) for answer in refused} <= {InvalidInput}
    assert first == len(ledger.sent) == many
    assert statuses == {"sent": many}


@on_both
async def test_retries_of_a_channel_count_across_workers(backend: Backend, app: Duetime) -> None:
    ledger, backup = Ledger(), Ledger()
    ledger.failure = NotSent("no answer", transient=True)
    backup.name = "call"
    async with fleet(backend, ledger, backup, tries=5, retry=Constant("50ms")):
        await app.subjects.put("game", due=soon(), remind=EVEN_LATE, recipients=["ann"])
        await until(lambda: sent(app, 1))
    deliveries = await app.reminders.deliveries(1)

    assert (len(ledger.sent), len(backup.sent)) == (5, 1)
    assert [(one.channel, one.status.value, one.attempts) for one in deliveries] == [
        ("mail", "failed", 5),
        ("call", "sent", 1),
    ]
