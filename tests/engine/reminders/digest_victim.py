"""A worker that dies while it hands a digest over: run as a module with URL and FILE."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from duetime import Duetime, Sent
from duetime.channels.channel import Message


class Deadly:
    """Notes each message outside of the database; at a digest the process is gone."""

    name = "mail"

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    async def send(self, message: Message) -> Sent:
        with self._file.open("a") as ledger:
            ledger.write(f"{message.key}\n")
        if message.event == "reminder.digest":
            os._exit(9)
        return Sent(message.key)

    async def close(self) -> None: ...


async def main(url: str, file: str) -> None:
    app = Duetime(url, lease="2s", heartbeat="500ms", rescue_every="200ms", grace="5s")
    app.add_channel(Deadly(file))
    async with app.worker():
        await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
