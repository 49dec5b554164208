"""The bot: prints what RabbitMQ hands to it. `AMQP_URL=amqp://… python bot.py [HOW_MANY]`."""

import asyncio
import json
import os
import sys
from datetime import datetime

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage, AbstractQueue

BROKER = os.environ.get("AMQP_URL")


async def declare_queue(connection: AbstractConnection) -> AbstractQueue:
    """Make what events go through. Duetime makes nothing on the broker; twice is as once."""
    channel = await connection.channel()
    exchange = await channel.declare_exchange("games", "topic", durable=True)
    queue = await channel.declare_queue("bot", durable=True)
    await queue.bind(exchange, "game.*")
    return queue


def show(event: AbstractIncomingMessage) -> None:
    facts = json.loads(event.body)
    starts = datetime.fromisoformat(facts["due_at"])
    what = f"{event.routing_key} of {facts['subject']}, {facts['rule']}"
    print(f"  bot: {facts['data']['title']} begins at {starts:%H:%M:%S} ({what})", flush=True)


async def listen(most: float) -> None:
    """Print each event once, until there were `most`."""
    if BROKER is None:
        raise SystemExit("The bot needs a broker: set AMQP_URL.")
    seen: set[str | None] = set()  # A real bot keeps the ids in a table, with what it did.
    connection = await aio_pika.connect_robust(BROKER)
    async with connection:
        queue = await declare_queue(connection)
        async with queue.iterator() as events:
            async for event in events:
                async with event.process():  # Acknowledged when the block has ended.
                    # If an answer was lost, an event arrives twice, with the same id.
                    if event.message_id not in seen:
                        show(event)
                        seen.add(event.message_id)
                if len(seen) >= most:
                    return


if __name__ == "__main__":
    asyncio.run(listen(float(sys.argv[1]) if sys.argv[1:] else float("inf")))
