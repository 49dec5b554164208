"""A real SMTP server of the test's process, which refuses what the test wants it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import Message as Mail
from email.parser import BytesParser
from email.policy import default as default_policy
from typing import Any

from aiosmtpd.smtp import SMTP as SmtpSession
from aiosmtpd.smtp import AuthResult, Envelope, Session


class SmtpServer:
    """A real SMTP server of this process. `replies` overrides what it says to a command."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.envelopes: list[Envelope] = []
        self.replies: dict[str, str] = {}
        self.silent = asyncio.Event()
        self.hangs_up_after_data = False
        self.port = 0

    @asynccontextmanager
    async def listening(self, **options: Any) -> AsyncIterator[SmtpServer]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: SmtpSession(self, enable_SMTPUTF8=True, hostname="mail.test", **options),
            "127.0.0.1",
            0,
        )
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def handle_RCPT(
        self, server: SmtpSession, session: Session, envelope: Envelope, address: str, options: Any
    ) -> str:
        envelope.rcpt_tos.append(address)
        return self.replies.get("RCPT", "250 OK")

    async def handle_DATA(self, server: SmtpSession, session: Session, envelope: Envelope) -> str:
        if "DATA" in self.replies:
            if self.replies["DATA"] == "silent":
                await self.silent.wait()
            return self.replies["DATA"]
        assert isinstance(envelope.content, bytes)
        self.envelopes.append(envelope)
        self.mails.append(BytesParser(policy=default_policy).parsebytes(envelope.content))
        if self.hangs_up_after_data:
            assert server.transport is not None
            asyncio.get_running_loop().call_soon(server.transport.close)
        return "250 queued"

    def authenticate(
        self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any
    ) -> AuthResult:
        # Not handled: the server shall write the refusal.
        return AuthResult(success=data.password == b"right", handled=False)
