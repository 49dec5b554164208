"""An agent as a flow: a model chooses what to do, and a person approves what is dangerous.

    MODEL_URL=http://localhost:9000/model SHOP_URL=http://localhost:9000/shop \\
        python examples/agent_flow.py "Is there enough tea?"

Each call of the model and of a tool is a step: it is recorded, and a restart does not repeat it.
Kill the program at any moment and start it again with the same question: the run goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import msgspec

from duetime import Duetime, Flow, current_step

app = Duetime(migrate=True)
MAX_TURNS = 20


class Answer(msgspec.Struct):
    """What the model says: it wants a tool to be called, or it is done."""

    text: str = ""
    tool: str | None = None
    arguments: dict[str, Any] = {}


def post(url: str, body: Any) -> Any:
    """Send a request. If it is sent again after a crash, the receiver knows it by its key."""
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": current_step().key},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def ask_model(messages: list[dict[str, Any]]) -> Answer:
    return msgspec.convert(post(os.environ["MODEL_URL"], {"messages": messages}), Answer)


def read_stock(item: str) -> int:
    in_stock: int = post(f"{os.environ['SHOP_URL']}/stock", {"item": item})
    return in_stock


def place_order(item: str, quantity: int) -> str:
    order: str = post(f"{os.environ['SHOP_URL']}/orders", {"item": item, "quantity": quantity})
    return order


TOOLS: dict[str, Callable[..., Any]] = {"read_stock": read_stock, "place_order": place_order}
DANGEROUS = {"place_order"}


@app.flow(timeout="30d")
async def agent(flow: Flow, question: str) -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for turn in range(1, MAX_TURNS + 1):
        answer = await flow.step(ask_model, messages)
        if answer.tool is None:
            return answer.text
        messages.append({"role": "assistant", "content": msgspec.to_builtins(answer)})
        # Each turn has a signal of its own: an approval counts for one call only.
        if answer.tool not in TOOLS:
            result: Any = "there is no such tool"
        elif answer.tool in DANGEROUS and not await flow.wait_for(f"approve-{turn}"):
            result = "a person has declined this"
        else:
            result = await flow.step(TOOLS[answer.tool], **answer.arguments)
        messages.append({"role": "tool", "content": result})
    return f"There is no answer after {MAX_TURNS} turns."


async def main(question: str) -> None:
    async with app.worker():
        # The question is the key: to ask it again finds the run that is under way.
        run = await agent.using(key=question).start(question)
        print(f"Inspect the run:  duetime flows explain {run.id}")
        print(f"Approve a turn:   duetime flows signal {run.id} approve-TURN true")
        print(await run.result("30d"))
    await app.close()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not {"MODEL_URL", "SHOP_URL"} <= os.environ.keys():
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1]))
