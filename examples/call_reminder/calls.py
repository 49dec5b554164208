"""Appointments, and a call the day before each: `uvicorn calls:api`.

The provider that makes the calls takes an idempotency key: whatever is repeated, nobody is called
twice. Its id of the call is kept, and by it the provider tells later whether anybody picked up. If
nobody did, a letter goes out.
"""

import os
from datetime import datetime
from typing import Annotated

import httpx2
from fastapi import Body, FastAPI, HTTPException

from duetime import (
    Console,
    Duetime,
    Exponential,
    Message,
    NotSent,
    ReceiptStatus,
    Sent,
    configure_logging,
)
from duetime.errors import DeliveryNotFound

PROVIDER = os.environ.get("PROVIDER_URL", "http://127.0.0.1:8001")
HERE = os.environ.get("PUBLIC_URL", "http://127.0.0.1:8000")
RETRY_BASE = os.environ.get("RETRY_BASE", "60s")
RECEIPTS: dict[str, ReceiptStatus] = {"completed": "delivered", "no-answer": "failed"}

configure_logging("console", "warning")  # Each try that failed is a line.
app = Duetime(migrate=True)


class Phone:
    """A channel of our own: calls the recipient."""

    name = "phone"

    def __init__(self) -> None:
        self._client: httpx2.AsyncClient | None = None

    async def send(self, message: Message) -> Sent:
        if self._client is None:
            self._client = httpx2.AsyncClient(base_url=PROVIDER, timeout=2)
        order = {"to": message.address, "text": message.body, "status_url": f"{HERE}/call-status"}
        headers = {"Idempotency-Key": message.key}
        try:
            answer = await self._client.post("/calls", json=order, headers=headers)
        except httpx2.TransportError as error:
            # Perhaps the phone rings already. The next try has the same key.
            raise NotSent(f"no answer: {type(error).__name__}", transient=True) from None
        if answer.status_code == 429 or answer.is_server_error:
            raise NotSent(f"the provider answered {answer.status_code}", transient=True)
        if not answer.is_success:
            raise NotSent(f"the provider refused: {answer.text}", transient=False)
        return Sent(external_id=answer.json()["id"])

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


# Tried four times: 60 s, 120 s and 240 s apart. Then, or if nobody picks up, a letter goes out.
app.add_channel(Phone(), retry=Exponential(RETRY_BASE, max_attempts=4))
app.add_channel(Console(name="letter"))  # Yours would be printed.

api = FastAPI(lifespan=app.lifespan(worker=True))


@api.put("/appointments/{number}")
async def book(
    number: int,
    name: Annotated[str, Body()],
    phone: Annotated[str, Body()],
    at: Annotated[datetime, Body()],
) -> str:
    """Book an appointment, or move it; `at` with its offset: 2026-03-06T14:00+01:00."""
    await app.recipients.put(name, channels={"phone": phone, "letter": name}, by="the desk")
    return await app.subjects.put(
        f"appointment:{number}",
        due=at,
        remind=["-1d"],
        recipients=[name],
        data={"title": "Your appointment"},
        by="the desk",
    )


@api.get("/appointments/{number}")
async def tell(number: int) -> list[str]:
    """Say what became of its reminders."""
    reminders = await app.reminders.list(subject=f"appointment:{number}")
    return [str(await app.reminders.explain(reminder.id)) for reminder in reminders]


@api.post("/call-status")
async def call_status(id: Annotated[str, Body()], status: Annotated[str, Body()]) -> None:  # noqa: A002
    """The provider reports what became of a call."""
    receipt = RECEIPTS[status]
    try:
        reason = status if receipt == "failed" else None
        await app.receipt(id, receipt, reason=reason, channel="phone")
    except DeliveryNotFound as error:
        # Its answer to our request was lost, or is still on its way: it has to report again.
        raise HTTPException(404, str(error)) from error
