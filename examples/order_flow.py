"""An order as a function: payment, approval by a person, shipping; if it fails, a refund.

Run it with `python examples/order_flow.py`. It makes duetime.db in the current folder.
`order_graph.py` is the same order as a graph.
"""

from __future__ import annotations

import asyncio

import msgspec

from duetime import Discard, Duetime, Flow, JobFailed, current_step

app = Duetime(migrate=True)


class Payment(msgspec.Struct):
    id: str
    amount: int


class PaymentProvider:
    """Stands for a service that charges once for each idempotency key."""

    def __init__(self) -> None:
        self._payments: dict[str, Payment] = {}

    def charge(self, order_id: int, amount: int, *, key: str) -> Payment:
        if key not in self._payments:
            print(f"order {order_id}: charged {amount}")
            self._payments[key] = Payment(f"payment-{order_id}", amount)
        return self._payments[key]


provider = PaymentProvider()


async def charge(order_id: int, amount: int) -> Payment:
    # After a crash between the charge and its record the step runs again, with the same key.
    return provider.charge(order_id, amount, key=current_step().key)


async def refund(order_id: int, payment: Payment) -> None:
    print(f"order {order_id}: refunded {payment.amount}")


async def ship(order_id: int) -> str:
    print(f"order {order_id}: shipped")
    return f"parcel-{order_id}"


@app.flow(timeout="30d")
async def order(flow: Flow, order_id: int, amount: int, approve_within: str = "7d") -> str:
    payment = await flow.step(charge, order_id, amount)
    flow.on_failure(refund, order_id, payment)
    # While it waits, the run is a row in the database: no worker is held.
    approved: bool | None = await flow.wait_for("approved", timeout=approve_within, default=None)
    if approved is None:
        raise Discard("nobody approved it in time")
    if not approved:
        raise Discard("it was declined")
    return await flow.step(ship, order_id)


async def main() -> None:
    async with app.worker():
        approved = await order.using(key="order:1").start(order_id=1, amount=500)
        await approved.signal("approved", True)
        print(await approved.result())

        declined = await order.using(key="order:2").start(order_id=2, amount=900)
        await declined.signal("approved", False)
        try:
            await declined.result()
        except JobFailed as error:
            print(f"order 2: {error.error}")

        forgotten = await order.using(key="order:3").start(3, 700, approve_within="1s")
        try:
            await forgotten.result()
        except JobFailed as error:
            print(f"order 3: {error.error}")
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
