"""An evening in a few seconds: games are planned, moved and called off, and the worker is killed.

`python story.py`; with AMQP_URL set, the bot gets the events.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path

import games
from games import Game, app

HERE = Path(__file__).parent
WORKER = ("-m", "duetime", "worker", "--app", "games:app", "--log-level", "warning")

Process = subprocess.Popen[bytes]


def start(*arguments: str) -> Process:
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    return subprocess.Popen([sys.executable, *arguments], env=environment)


def say(text: str) -> None:
    print(text, flush=True)


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def prepare_broker(url: str) -> None:
    import aio_pika
    from bot import declare_queue

    async with await aio_pika.connect(url) as connection:
        queue = await declare_queue(connection)
        await queue.purge()  # What an earlier story left.


async def plan_games(starts: datetime) -> tuple[Game, Game, Game]:
    await app.scopes.put("guild:1", remind=["-1m", "-58s"], by="ann")
    await app.scopes.put("channel:chess", parent="guild:1", by="ann")
    await app.scopes.put("channel:boards", parent="guild:1", by="ann")
    chess = await games.plan_game("Chess", channel="channel:chess", starts=starts, by="ann")
    go = await games.plan_game("Go", channel="channel:boards", starts=starts, by="ann")
    catan = await games.plan_game("Catan", channel="channel:boards", starts=starts, by="ann")
    rules, source = await app.subjects.rules(chess.ref)
    say(f"Chess, Go and Catan begin at {starts:%H:%M:%S}; {', '.join(rules)} is from {source}")
    return chess, go, catan


async def change_the_calendar(go: Game, catan: Game, later: datetime) -> None:
    await games.move_game(go.id, starts=later, by="bob")
    say(f"Go moves to {later:%H:%M:%S}")
    await games.cancel_game(catan.id, by="bob")
    say("Catan is called off")
    put = await app.scopes.put("channel:boards", parent="guild:1", remind=["-59s"], by="ann")
    rules, source = await app.subjects.rules(go.ref)
    say(f"{source} has rules of its own: {put.affected} game changes, to {', '.join(rules)}")


async def restart(worker: Process, chess: Game, next_due: datetime) -> Process:
    """Kill the worker after the first reminder; start another when the next has fallen due."""

    async def first_is_sent() -> bool:
        return bool(await app.reminders.list(subject=chess.ref, status="sent"))

    async def next_is_due() -> bool:
        return await app.now() > next_due

    await wait_until(first_is_sent)
    worker.kill()
    worker.wait()
    say("kill -9: no worker runs while the next reminders fall due")
    await wait_until(next_is_due)
    say("A worker starts: what is due goes out")
    return start(*WORKER)


async def play(processes: list[Process]) -> None:
    bot: Process | None = None
    if games.BROKER:
        await prepare_broker(games.BROKER)
        bot = start(str(HERE / "bot.py"), "3")
        processes.append(bot)
    worker = start(*WORKER)
    processes.append(worker)

    async def it_works() -> bool:
        return any(f":{worker.pid}:" in one.name for one in await app.workers.list())

    await wait_until(it_works)

    starts = await app.now() + timedelta(seconds=63)
    chess, go, catan = await plan_games(starts)
    await change_the_calendar(go, catan, later=starts + timedelta(seconds=1))
    processes.append(await restart(worker, chess, starts - timedelta(seconds=58)))

    async def nothing_waits() -> bool:
        armed = [one.subject for one in await app.reminders.list(status="armed")]
        return not {chess.ref, go.ref, catan.ref}.intersection(armed)

    await wait_until(nothing_waits)
    if bot:
        await asyncio.to_thread(bot.wait, 30)
    say("\nWhat became of each, and why:")
    for game in (chess, go, catan):
        for reminder in await app.reminders.list(subject=game.ref):
            say(f"  {game.title}: {await app.reminders.explain(reminder.id)}")


async def main() -> None:
    await games.create_tables()
    await app.store()  # Makes Duetime's tables, before two processes want to.
    processes: list[Process] = []
    try:
        await play(processes)
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        await app.close()
        await games.engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
