"""The smallest program that works: `python examples/quickstart.py`."""

import asyncio

from duetime import Duetime

app = Duetime()  # DUETIME_DATABASE, or else sqlite:///duetime.db


@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"


async def main() -> None:
    async with app.worker():
        now = await greet.enqueue(name="world")
        soon = await greet.using(delay="1s").enqueue(name="world, a second later")
        print(await now.result())
        print(await soon.result())
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
