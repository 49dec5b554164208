"""A reminder goes through a real channel, falls back, and comes again under the same key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from duetime import Duetime
from duetime.channels.email import Email
from duetime.channels.webhook import Webhook, make_secret
from tests.channels.http_server import HttpServer
from tests.channels.smtp_server import SmtpServer
from tests.conftest import Backend

START = datetime(2026, 3, 2, tzinfo=UTC)


async def test_a_reminder_is_mailed_once_the_server_takes_it(
    backend: Backend, smtp: SmtpServer
) -> None:
    app = Duetime(backend.url)
    app.add_channel(
        Email("127.0.0.1", port=smtp.port, sender="games@example.org", security="plain")
    )
    smtp.replies["RCPT"] = "451 try again later"
    async with app.testing(now=START) as world:
        await app.subjects.put(
            "game:42",
            due=START + timedelta(hours=2),
            remind=["-1h"],
            recipients=["ann@example.org"],
            data={"title": "Catan"},
        )
        await world.advance("1h")
        smtp.replies.clear()
        await world.advance("1h")
        [reminder] = await app.reminders.list()

    [mail] = smtp.mails
    assert mail["To"] == "ann@example.org"
    assert mail["Subject"] == "Catan"
    assert len(world.ran) == 2
    assert (reminder.status.value, reminder.channel) == ("sent", "email")


async def test_a_webhook_that_is_gone_falls_back_to_mail(
    backend: Backend, smtp: SmtpServer, http: HttpServer
) -> None:
    app = Duetime(backend.url)
    closed = f"http://127.0.0.1:{http.port}/hook"
    app.add_channel(Webhook(closed, secrets=[make_secret()]))
    app.add_channel(
        Email("127.0.0.1", port=smtp.port, sender="games@example.org", security="plain")
    )
    async with app.testing(now=START) as world:
        await app.subjects.put(
            "game:42",
            due=START + timedelta(hours=2),
            remind=["-1h"],
            recipients=["ann@example.org"],
        )
        await world.advance("2h")
        [reminder] = await app.reminders.list()

    # The webhook is refused before anything is sent: loopback is not a place for it.
    assert reminder.channel == "email"
    assert len(smtp.mails) == 1
