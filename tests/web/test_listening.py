"""The socket that the service listens on."""

from __future__ import annotations

import socket

from duetime.web.serving import listen


def test_small_answers_are_sent_at_once() -> None:
    with listen("127.0.0.1", 0) as listening:
        # asyncio sets TCP_NODELAY only on sockets that state their protocol.
        assert listening.proto == socket.IPPROTO_TCP
