"""An order as a graph: payment, approval, a label for each item, shipping; if it fails, a refund.

Run it with `python examples/order_graph.py`. It makes duetime.db in the current folder.
"""

from __future__ import annotations

import asyncio

import msgspec

from duetime import Discard, Duetime, JobFailed

app = Duetime(migrate=True)
order = app.graph("order", timeout="30d")


class Payment(msgspec.Struct):
    id: str
    amount: int


@order.step
async def charge(order_id: int, amount: int) -> Payment:
    print(f"order {order_id}: charged {amount}")
    return Payment(f"payment-{order_id}", amount)


@order.on_failure(charge)
async def refund(charge: Payment, order_id: int) -> None:
    print(f"order {order_id}: refunded {charge.amount}")


# Large orders need a person's approval, others do not.
order.signal("approved", when=lambda charge: charge.amount > 100, timeout="7d", default=False)


@order.step
async def accept(order_id: int, approved: bool | None) -> None:
    if approved is False:
        raise Discard(f"order {order_id} was not approved")


@order.map(over="items", after=[accept])
async def print_label(item: str) -> str:
    return f"label for {item}"


@order.step
async def ship(order_id: int, print_label: list[str]) -> str:
    print(f"order {order_id}: shipped with {', '.join(print_label)}")
    return f"parcel-{order_id}"


async def main() -> None:
    async with app.worker():
        small = await order.using(key="order:1").start(order_id=1, amount=20, items=["tea"])
        print(await small.result())

        large = await order.using(key="order:2").start(
            order_id=2, amount=500, items=["desk", "lamp"]
        )
        await large.signal("approved", True)
        print(await large.result())

        refused = await order.using(key="order:3").start(order_id=3, amount=900, items=["yacht"])
        await refused.signal("approved", False)
        try:
            await refused.result()
        except JobFailed as error:
            print(f"order 3: {error.error}")
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
