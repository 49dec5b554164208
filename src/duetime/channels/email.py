"""Email over SMTP."""

from __future__ import annotations

import asyncio
import re
import ssl
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import format_datetime, parseaddr
from typing import Literal

from duetime.channels.channel import Message, NotSent, Sent, digest
from duetime.domain.duration import Duration, format_duration, parse_positive_duration
from duetime.errors import InvalidInput

try:
    import aiosmtplib
except ImportError as error:
    raise ImportError(
        "The email channel requires an extra package: pip install 'duetime[email]'."
    ) from error

Security = Literal["starttls", "tls", "plain"]

_PORTS = {"starttls": 587, "tls": 465, "plain": 25}
# What people have. Quoted local parts, comments and groups are where injections live.
_ADDRESS = re.compile(r"([^\s@<>()\[\],;:\\\"]+)@([^\s@<>()\[\],;:\\\"]+)")
_GOODBYE_SECONDS = 2.0


class Email:
    """Sends plain text from `sender` to the recipient's address.

    Every attempt at a message has the same Message-ID. What the server says about the message or
    the address lasts if its code is 5xx and passes if it is 4xx; a server that cannot be reached,
    or refuses the login, passes.
    """

    def __init__(
        self,
        host: str,
        *,
        sender: str,
        security: Security = "starttls",
        port: int | None = None,
        username: str | None = None,
        password: str | None = None,
        name: str = "email",
        timeout: Duration = "30s",
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if security not in _PORTS:
            raise InvalidInput(f"security must be 'starttls', 'tls' or 'plain', got {security!r}.")
        if (username is None) != (password is None):
            raise InvalidInput("username and password must be given together.")
        self.name = name
        self._host = host
        self._port = port or _PORTS[security]
        self._security = security
        self._username = username
        self._password = password
        self._timeout = parse_positive_duration(timeout, name="timeout")
        self._ssl_context = ssl_context
        try:
            self._sender = _read_address(sender)
        except NotSent as error:
            raise InvalidInput(f"sender: {error}") from None

    async def send(self, message: Message) -> Sent:
        """Hand it to the server; sent means that the server has accepted it."""
        mail = self._make_mail(message)
        client = aiosmtplib.SMTP(
            hostname=self._host,
            port=self._port,
            use_tls=self._security == "tls",
            start_tls=self._security == "starttls",
            username=self._username,
            password=self._password,
            timeout=self._timeout.total_seconds(),
            tls_context=self._ssl_context,
        )
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                await self._connect(client)
                await self._hand_over(client, mail)
        except TimeoutError:
            client.close()
            raise NotSent(
                f"{self._host} did not accept the mail within {format_duration(self._timeout)}.",
                transient=True,
            ) from None
        except BaseException:
            client.close()
            raise
        await _quit(client)
        return Sent(str(mail["Message-ID"]))

    async def close(self) -> None:
        """Nothing stays open: each message has a connection of its own."""

    def _make_mail(self, message: Message) -> EmailMessage:
        if message.address is None:
            raise NotSent("The recipient has no email address.", transient=False)
        mail = EmailMessage(policy=SMTP_POLICY)
        mail["From"] = self._sender
        mail["To"] = _read_address(message.address)
        mail["Subject"] = _header_text(message.title)
        mail["Date"] = format_datetime(datetime.now(UTC))
        mail["Message-ID"] = f"<{digest(message.key)}@{self._sender.domain}>"
        # RFC 3834: nobody's holiday notice shall answer.
        mail["Auto-Submitted"] = "auto-generated"
        try:
            mail.set_content(message.body, cte="quoted-printable")
        except UnicodeEncodeError as error:
            raise NotSent(f"The message cannot be encoded: {error}.", transient=False) from None
        return mail

    async def _connect(self, client: aiosmtplib.SMTP) -> None:
        try:
            await client.connect()
        except TimeoutError:
            raise
        except (aiosmtplib.SMTPException, OSError) as error:
            raise NotSent(
                f"Connecting to {self._host}:{self._port} failed: {_said(error)}.", transient=True
            ) from error

    async def _hand_over(self, client: aiosmtplib.SMTP, mail: EmailMessage) -> None:
        try:
            await client.send_message(
                mail, sender=self._sender.addr_spec, recipients=[mail["To"].addresses[0].addr_spec]
            )
        except TimeoutError:
            raise
        except (aiosmtplib.SMTPException, OSError) as error:
            cause: Exception = error
            if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
                cause = error.recipients[0]
            lasting = isinstance(cause, aiosmtplib.SMTPNotSupported) or (
                isinstance(cause, aiosmtplib.SMTPResponseException) and cause.code >= 500
            )
            raise NotSent(
                f"{self._host} did not accept the mail: {_said(cause)}.", transient=not lasting
            ) from error


def _read_address(text: str) -> Address:
    """Exactly one address, with or without a name: `ann@example.com`, `Ann <ann@example.com>`."""
    name, address = parseaddr(text) if "<" in text else ("", text)
    match = _ADDRESS.fullmatch(address)
    if match is None or "=?" in address or not text.isprintable() or text.count("@") != 1:
        raise NotSent(f"{text[:80]!r} is not an email address.", transient=False)
    try:
        domain = match[2].encode("idna").decode("ascii")
        return Address(_header_text(name), match[1], domain)
    except (UnicodeError, ValueError) as error:
        raise NotSent(f"{text[:80]!r} is not an email address: {error}.", transient=False) from None


def _header_text(text: str) -> str:
    """The text on one line, without the sign that begins an encoded word.

    The email package decodes such words, and versions of Python before 3.11.9 and 3.12.3 then write
    the line breaks in them as they are: that begins another header, or the body.
    """
    return _one_line(text).replace("=?", "= ?")


def _one_line(text: str) -> str:
    """The text without line breaks and control characters, which could begin another header."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _said(error: Exception) -> str:
    if isinstance(error, aiosmtplib.SMTPResponseException):
        return f"{error.code} {_one_line(error.message)[:200]}".rstrip(". ")
    return f"{type(error).__name__}: {_one_line(str(error))[:200]}".rstrip(". ")


async def _quit(client: aiosmtplib.SMTP) -> None:
    """The mail is accepted: whatever happens now changes nothing."""
    try:
        await client.quit(timeout=_GOODBYE_SECONDS)
    except Exception:  # noqa: BLE001 -- else a mail that was accepted would be sent again.
        pass
    finally:
        client.close()
