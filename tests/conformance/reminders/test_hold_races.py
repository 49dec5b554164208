"""What a reminder waits for ends in the moment in which it is put on hold, on every backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from duetime import Duetime
from duetime.errors import DatabaseUnreachable
from duetime.storage.store import Statements, Store
from tests.conformance.mailbox import HOUR, MINUTE, START, Mailbox
from tests.conftest import Backend
from tests.observing import observed

Change = Callable[[], Awaitable[Any]]

READ, HELD, DIGEST_WAITS = "reminder_ready", "admission_hold", "digest_lock"
"""After the transaction with this statement the settings change: a worker has decided by those
before, and has yet to record what follows."""


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url)


@pytest.fixture
def mail(app: Duetime) -> Mailbox:
    return Mailbox(app, "mail")


class Between:
    """Makes a change once, right after a transaction that ran the statement with this name."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sql = cast("Any", store)._sql
        self._text = ""
        self._change: Change | None = None
        self.made = 0
        transact = store.transact

        async def run(statements: Statements, **how: Any) -> Any:
            seen: list[str] = []
            answer = await transact(observed(statements, lambda one: seen.append(one[0])), **how)
            if self._change is not None and self._text in seen:
                change, self._change = self._change, None
                await change()
                self.made += 1
            return answer

        monkeypatch.setattr(store, "transact", run)

    def after(self, name: str, change: Change) -> None:
        self._text, self._change = self._sql[name], change


async def put(app: Duetime, ref: str, **options: Any) -> None:
    """Remind ann an hour after the start."""
    await app.subjects.put(
        ref, due=START + 2 * HOUR, remind=[{"rule": "-1h"} | options], recipients=["ann"]
    )


@pytest.mark.parametrize("moment", [READ, HELD])
async def test_quiet_hours_that_are_lifted_hold_nothing(
    app: Duetime, mail: Mailbox, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.testing(now=START) as world:
        between = Between(await app.store(), monkeypatch)
        await app.recipients.put("ann", quiet="12:30-13:30")
        await put(app, "game")
        between.after(moment, lambda: app.recipients.put("ann", quiet=None))
        await world.advance("3h")

    assert between.made == 1
    assert mail.times == [START + HOUR]


@pytest.mark.parametrize("moment", [READ, HELD])
async def test_quiet_hours_of_a_recipient_that_is_deleted_hold_nothing(
    app: Duetime, mail: Mailbox, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.testing(now=START) as world:
        between = Between(await app.store(), monkeypatch)
        await app.recipients.put("ann", quiet="12:30-13:30")
        await put(app, "game")
        between.after(moment, lambda: app.recipients.delete("ann"))
        await world.advance("3h")

    assert between.made == 1
    assert mail.times == [START + HOUR]


@pytest.mark.parametrize("moment", [READ, HELD])
async def test_other_quiet_hours_hold_until_they_end(
    app: Duetime, mail: Mailbox, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.testing(now=START) as world:
        between = Between(await app.store(), monkeypatch)
        await app.recipients.put("ann", quiet="12:30-14:30")
        await put(app, "game", expires="never")
        between.after(moment, lambda: app.recipients.put("ann", quiet="12:30-13:10"))
        await world.advance("3h")

    assert between.made == 1
    assert mail.times == [START + 70 * MINUTE]


@pytest.mark.parametrize("moment", [READ, HELD])
async def test_a_limit_that_is_lifted_holds_nothing(
    app: Duetime, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[Any] = []

    @app.on_reminder
    async def send(reminder: Any) -> None:
        times.append(await app.now())

    async with app.testing(now=START) as world:
        between = Between(await app.store(), monkeypatch)
        await app.recipients.put("ann", max_per_hour=1)
        await app.subjects.put("game:1", due=START + HOUR, remind=["-1m"], recipients=["ann"])
        await world.advance("59m")
        await put(app, "game:2")
        between.after(moment, lambda: app.recipients.put("ann", max_per_hour=None))
        await world.advance("3h")

    assert between.made == 1
    assert times == [START + 59 * MINUTE, START + HOUR]


async def test_a_limit_that_is_lifted_releases_a_digest_that_decides_to_wait(
    app: Duetime, mail: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.testing(now=START) as world:
        between = Between(await app.store(), monkeypatch)
        await app.recipients.put("ann", max_per_hour=1)
        for number in range(3):
            await put(app, f"game:{number}", expires="never")
        await world.advance("65m")
        between.after(DIGEST_WAITS, lambda: app.recipients.put("ann", max_per_hour=None))
        # The digest is checked again, and has to wait as before.
        await app.recipients.put("ann", max_per_hour=1, muted=["subject:other"])
        await world.advance("10m")

    assert between.made == 1
    assert len(mail.messages) == 2
    assert mail.times[1] < START + 66 * MINUTE


@pytest.mark.parametrize("moment", [READ, HELD])
async def test_one_that_becomes_urgent_is_not_held(
    app: Duetime, mail: Mailbox, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.testing(now=START) as world:
        between = Between(await app.store(), monkeypatch)
        await app.recipients.put("ann", quiet="12:30-13:30")
        await app.scopes.put("club", remind=["-1h"])
        await app.subjects.put("game", due=START + 2 * HOUR, scope="club", recipients=["ann"])
        # By the clock of the test, it is due at the very moment of the change.
        await world.outage("61m")
        urgent = [{"rule": "-1h", "urgent": True}]
        between.after(moment, lambda: app.scopes.put("club", remind=urgent))
        await world.advance("3h")

    assert between.made == 1
    assert mail.times == [START + 61 * MINUTE]


@pytest.mark.parametrize("moment", [READ, HELD])
async def test_one_that_becomes_urgent_does_not_stay_in_its_digest(
    app: Duetime, mail: Mailbox, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.testing(now=START) as world:
        between = Between(await app.store(), monkeypatch)
        await app.recipients.put("ann", max_per_hour=1)
        for number in range(2):
            await put(app, f"game:{number}", expires="never")
        await world.advance("65m")
        [waiting] = await app.reminders.list(status="armed")
        between.after(moment, lambda: put(app, waiting.subject, expires="never", urgent=True))
        # It is checked again, and has to wait as before.
        await app.recipients.put("ann", max_per_hour=1, muted=["subject:other"])
        await world.advance("1h")

    assert between.made == 1
    assert mail.times == [START + HOUR, START + 65 * MINUTE]


async def test_a_job_that_is_cancelled_does_not_wait(
    app: Duetime, mail: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.testing(now=START) as world:
        between = Between(await app.store(), monkeypatch)
        await app.recipients.put("ann", quiet="12:30-13:30")
        await put(app, "game")
        [reminder] = await app.reminders.list()
        assert reminder.job_id is not None
        job_id = reminder.job_id
        between.after(READ, lambda: app.jobs.cancel(job_id))
        await world.advance("3h")
        job = await app.jobs.get(job_id)

    assert between.made == 1
    assert mail.times == []
    assert job.state == "cancelled"


async def test_a_job_that_waits_shows_why_in_its_history(app: Duetime, mail: Mailbox) -> None:
    async with app.testing(now=START) as world:
        await app.recipients.put("ann", quiet="12:30-13:30")
        await put(app, "game")
        await world.advance("65m")
        [reminder] = await app.reminders.list()
        assert reminder.job_id is not None
        job = await app.jobs.get(reminder.job_id)

    [attempt] = job.history
    assert (job.state, job.attempts, job.run_at) == ("pending", 0, START + 90 * MINUTE)
    assert (attempt.outcome, attempt.error_code) == ("snoozed", "quiet_hours")
    assert attempt.facts is not None
    assert attempt.facts["recipient"] == "ann"


async def test_a_reminder_whose_wait_was_committed_unseen_is_sent_once(
    app: Duetime, mail: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the commit is lost, and the quiet hours are lifted at that moment."""

    async def lift_and_lose() -> None:
        await app.recipients.put("ann", quiet=None)
        raise DatabaseUnreachable("the answer to the commit was lost")

    async with app.testing(now=START) as world:
        between = Between(await app.store(), monkeypatch)
        await app.recipients.put("ann", quiet="12:30-13:30")
        await put(app, "game")
        between.after(HELD, lift_and_lose)
        await world.advance("3h")
        [job] = await app.jobs.list(task="duetime.remind")
        history = (await app.jobs.get(job.id)).history

    assert mail.times == [START + HOUR]
    assert [one.outcome for one in history] == ["snoozed", "completed"]


@pytest.mark.parametrize("settings", [{"quiet": "12:30-13:30"}, {"max_per_hour": 5}])
async def test_a_subject_deleted_before_the_admission_cancels_the_job(
    app: Duetime, mail: Mailbox, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.testing(now=START) as world:
        between = Between(await app.store(), monkeypatch)
        await app.recipients.put("ann", channels=["mail"], **settings)
        await put(app, "game")
        between.after(READ, lambda: app.subjects.delete("game"))
        await world.advance("3h")
        [job] = await app.jobs.list(task="duetime.remind")
        history = (await app.jobs.get(job.id)).history

    assert between.made == 1
    assert mail.times == []
    assert [(one.outcome, one.error_code) for one in history] == [("cancelled", "just_ended")]
