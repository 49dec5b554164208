"""Reminders that follow a game calendar. `python examples/game_reminders.py`."""

import asyncio
from datetime import timedelta

from duetime import Duetime, Reminder, Sent

app = Duetime()  # DUETIME_DATABASE, or else sqlite:///duetime.db
GAMES = ("game:chess", "game:go", "game:catan")


@app.on_reminder
async def tell(reminder: Reminder) -> Sent:
    late = (await app.now() - reminder.time) / timedelta(milliseconds=1)
    title = reminder.data["title"]
    print(f"to {reminder.recipient}: {title} begins in 2 s (sent {late:.0f} ms after its time)")
    return Sent(external_id=f"message-{reminder.id}")


async def plan(game: str, seconds: float) -> str:
    """Put a game that begins so many seconds from now; say what that changed."""
    due = await app.now() + timedelta(seconds=seconds)
    data = {"title": game.removeprefix("game:").title()}
    return await app.subjects.put(
        game, due=due, scope="channel:9", recipients=["ann"], data=data, by="the example"
    )


async def any_waits() -> bool:
    return any([await app.reminders.list(subject=game, status="armed") for game in GAMES])


async def main() -> None:
    await app.scopes.put("guild:1", remind=["-2s"])
    await app.scopes.put("channel:9", parent="guild:1")
    for game in GAMES:
        print(f"{game}: {await plan(game, 4)}")
    rules, source = await app.subjects.rules("game:chess")
    print(f"game:chess is reminded of by {', '.join(rules)}, from {source}")

    print(f"game:go moves by a second: {await plan('game:go', 5)}")
    await app.subjects.complete("game:catan", by="the example")
    print("game:catan is done\n")

    async with app.worker():
        while await any_waits():  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    print("\nWhat became of each, and why:")
    for game in GAMES:
        for reminder in await app.reminders.list(subject=game):
            print(" ", await app.reminders.explain(reminder.id))
    print("\nWho changed game:go:")
    for event in reversed(await app.audit.list(entity="subject:game:go")):
        print(f"  {event.action} by {event.actor}")
    for game in GAMES:
        await app.subjects.delete(game)
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
