"""Emails through a real SMTP server: what is in them, what cannot get in, and TLS."""

from __future__ import annotations

from typing import Any

import pytest

from duetime.channels.channel import NotSent
from duetime.channels.email import Email
from duetime.errors import InvalidInput
from tests.channels.conftest import Certificate
from tests.channels.messages import message
from tests.channels.smtp_server import SmtpServer


def email(server: SmtpServer, **options: Any) -> Email:
    plain = {"port": server.port, "security": "plain", "sender": "Due Time <due@example.com>"}
    return Email("127.0.0.1", **{**plain, **options})


async def refusal(channel: Email, **changes: Any) -> NotSent:
    with pytest.raises(NotSent) as failure:
        await channel.send(message(**{"address": "ann@example.com", **changes}))
    return failure.value


async def test_what_arrives(smtp: SmtpServer) -> None:
    sent = await email(smtp).send(
        message(address="Änn Ö <ann@example.com>", title="Schach – um drei", body="Grüße\n.\nEnde")
    )

    [mail], [envelope] = smtp.mails, smtp.envelopes
    assert mail["From"] == "Due Time <due@example.com>"
    assert mail["To"] == "Änn Ö <ann@example.com>"
    assert mail["Subject"] == "Schach – um drei"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Message-ID"] == sent.external_id
    assert mail.get_payload(decode=True).decode().splitlines() == ["Grüße", ".", "Ende"]  # type: ignore[union-attr]
    assert (envelope.mail_from, envelope.rcpt_tos) == ("due@example.com", ["ann@example.com"])


async def test_the_message_id_depends_on_the_key_alone(smtp: SmtpServer) -> None:
    for key, body in (("a", "first"), ("a", "second"), ("b", "first")):
        await email(smtp).send(message(address="ann@example.com", key=key, body=body))

    first, again, other = (mail["Message-ID"] for mail in smtp.mails)
    assert first == again != other
    assert first.endswith("@example.com>")


async def test_a_title_cannot_begin_another_header(smtp: SmtpServer) -> None:
    title = "Hello\r\nBcc: eve@example.com\r\n\r\nbody\x00\u2028end"

    await email(smtp).send(message(address="ann@example.com", title=title))

    [mail] = smtp.mails
    assert mail["Bcc"] is None
    assert mail["Subject"] == "Hello Bcc: eve@example.com body end"
    assert smtp.envelopes[0].rcpt_tos == ["ann@example.com"]


@pytest.mark.parametrize(
    "text",
    [
        "=?utf-8?q?Hello=0d=0aBcc:_eve@example.com=0d=0a=0d=0aClick_here?=",
        "=?utf-8?b?SGVsbG8NCkJjYzogZXZlQGV4YW1wbGUuY29tDQoNCkNsaWNrIGhlcmU=?=",
        "=\r\n?utf-8?q?Hello=0d=0aBcc:_eve@example.com?=",
        "==??utf-8?q?Hello=0d=0aBcc:_eve@example.com?=",
        "Hello =?utf-8?q?=0aBcc:_eve@example.com?= " * 5,
    ],
)
@pytest.mark.parametrize("place", ["title", "body", "name"])
async def test_encoded_words_cannot_begin_another_header_or_the_body(
    smtp: SmtpServer, text: str, place: str
) -> None:
    """Python before 3.11.9 and 3.12.3 writes what they decode to as it is."""
    changes: dict[str, Any] = {"address": "ann@example.com", "body": "Bring a clock."}
    if place == "name":
        name = text.replace("@", "=40").replace("\r\n", "")
        changes["address"] = f"{name} <ann@example.com>"
    else:
        changes[place] = text

    try:
        await email(smtp).send(message(**changes))
    except NotSent:
        assert place == "name"
        assert smtp.envelopes == []
        return

    [mail] = smtp.mails
    content = smtp.envelopes[0].content
    assert isinstance(content, bytes)
    written = content.partition(b"\r\n\r\n")[0]
    assert mail["Bcc"] is None
    assert not any(line.lower().startswith(b"bcc") for line in written.splitlines())
    assert b"Click" not in written or place != "body"
    assert smtp.envelopes[0].rcpt_tos == ["ann@example.com"]
    if place == "title":
        assert mail.get_payload(decode=True).decode().strip() == "Bring a clock."  # type: ignore[union-attr]


async def test_a_title_that_looks_like_an_encoded_word_stays_readable(smtp: SmtpServer) -> None:
    await email(smtp).send(message(address="ann@example.com", title="=?utf-8?q?Caf=c3=a9?="))

    assert smtp.mails[0]["Subject"] == "= ?utf-8?q?Caf=c3=a9?="


@pytest.mark.parametrize(
    "address",
    [
        "=?utf-8?q?ann=0d=0aBcc=3a_eve?=@example.com",
        "ann@example.com, eve@example.com",
        "ann@example.com\r\nBcc: eve@example.com",
        "Ann\r\nBcc: eve@example.com <ann@example.com>",
        "<ann@example.com> <eve@example.com>",
        "ann@example.com> RCPT TO:<eve@example.com",
        "friends: ann@example.com, eve@example.com;",
        '"ann eve"@example.com',
        "ann",
        "@example.com",
        "ann@",
        "ann@exa mple.com",
        "ann@" + "a" * 64 + ".com",
        "",
    ],
)
async def test_what_is_not_one_address_is_refused(smtp: SmtpServer, address: str) -> None:
    failure = await refusal(email(smtp), address=address)

    assert not failure.transient
    assert smtp.envelopes == []


async def test_without_an_address_nothing_is_sent(smtp: SmtpServer) -> None:
    assert "no email address" in str(await refusal(email(smtp), address=None))


async def test_domains_of_every_script_are_reached(smtp: SmtpServer) -> None:
    await email(smtp).send(message(address="ann@bücher.example"))

    assert smtp.envelopes[0].rcpt_tos == ["ann@xn--bcher-kva.example"]


@pytest.mark.parametrize(
    ("command", "reply", "transient"),
    [
        ("RCPT", "450 mailbox busy", True),
        ("RCPT", "452 too many", True),
        ("RCPT", "550 no such user", False),
        ("RCPT", "553 not allowed", False),
        ("DATA", "451 greylisted", True),
        ("DATA", "421 going down", True),
        ("DATA", "554 spam", False),
        ("DATA", "552 too large", False),
    ],
)
async def test_the_servers_code_decides(
    smtp: SmtpServer, command: str, reply: str, transient: bool
) -> None:
    smtp.replies[command] = reply

    failure = await refusal(email(smtp))

    assert failure.transient is transient
    assert reply in str(failure)


async def test_a_server_that_is_not_there_may_pass() -> None:
    channel = Email("127.0.0.1", port=9, security="plain", sender="due@example.com")

    assert (await refusal(channel)).transient


async def test_a_goodbye_that_fails_changes_nothing(smtp: SmtpServer) -> None:
    smtp.hangs_up_after_data = True

    await email(smtp).send(message(address="ann@example.com"))

    assert len(smtp.mails) == 1


async def test_starttls_is_checked_and_needed(certificate: Certificate) -> None:
    server = SmtpServer()
    async with server.listening(tls_context=certificate.server):
        options = {"security": "starttls"}
        trusting = Email(
            "localhost",
            port=server.port,
            sender="due@example.com",
            ssl_context=_any_host(certificate),
        )
        await trusting.send(message(address="ann@example.com"))
        distrust = await refusal(email(server, **options))
    plain = SmtpServer()
    async with plain.listening():
        stripped = await refusal(email(plain, **options))

    assert len(server.mails) == 1
    assert distrust.transient
    assert "failed: SSLCertVerificationError" in str(distrust)
    assert stripped.transient
    assert plain.mails == []


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
async def test_login() -> None:
    server = SmtpServer()
    async with server.listening(
        authenticator=server.authenticate, auth_required=True, auth_require_tls=False
    ):
        await email(server, username="due", password="right").send(
            message(address="ann@example.com")
        )
        failure = await refusal(email(server, username="due", password="hunter2"))

    assert len(server.mails) == 1
    assert failure.transient, "a password is mended without touching the reminder"
    assert "535" in str(failure)
    assert "hunter2" not in str(failure)


@pytest.mark.parametrize(
    "options",
    [
        {"sender": "nobody"},
        {"sender": "a@example.com, b@example.com"},
        {"security": "ssl3"},
        {"username": "due"},
        {"password": "secret"},
        {"timeout": 0},
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Email("mail.example", **{"sender": "due@example.com", **options})


def _any_host(certificate: Certificate) -> Any:
    """Trusts the certificate, under whichever name."""
    context = certificate.client
    context.check_hostname = False
    return context
