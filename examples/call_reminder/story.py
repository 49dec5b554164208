"""Appointments of people whom it is not easy to call: `python story.py`. Takes a few seconds."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2

HERE = Path(__file__).parent
PEOPLE = {
    "ann": ("+15550100", "picks up"),
    "bob": ("+15550503", "the provider is busy at first"),
    "cleo": ("+15550504", "the provider is slow"),
    "dora": ("+15550444", "the provider's answer is lost"),
    "egon": ("+15550199", "does not pick up"),
    "fay": ("+15550400", "gave a wrong number"),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(*arguments: str, **variables: str) -> Iterator[None]:
    running = subprocess.Popen([sys.executable, *arguments], env=os.environ | variables)
    try:
        yield
    finally:
        running.terminate()
        running.wait()


async def wait_for(url: str) -> None:
    async with asyncio.timeout(30), httpx2.AsyncClient() as client:
        while True:
            try:
                await client.get(url)
                return
            except httpx2.TransportError:
                await asyncio.sleep(0.05)


async def book_and_watch(service: httpx2.AsyncClient) -> None:
    for number, (name, (phone, habit)) in enumerate(PEOPLE.items(), 1):
        # Two seconds more than a day ahead: the call of the day before is due in two seconds.
        at = datetime.now(UTC) + timedelta(days=1, seconds=2)
        body = {"name": name, "phone": phone, "at": at.isoformat()}
        answer = await service.put(f"/appointments/{number}", json=body)
        print(f"{name} {habit}: {answer.json()}", flush=True)
    for number in range(1, len(PEOPLE) + 1):
        print("", *await wait_for_the_end(service, number), sep="\n", flush=True)


async def wait_for_the_end(service: httpx2.AsyncClient, number: int) -> list[str]:
    """Return what became of an appointment's reminders, once that is known."""
    async with asyncio.timeout(30):
        while True:
            outcomes: list[str] = (await service.get(f"/appointments/{number}")).json()
            if all("It was delivered" in one or "sent by letter" in one for one in outcomes):
                return outcomes
            await asyncio.sleep(0.1)


async def main() -> None:
    provider, service = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with ExitStack() as stack:
        stack.enter_context(process(str(HERE / "provider.py"), provider.rpartition(":")[2]))
        server = ("-m", "uvicorn", "calls:api", "--app-dir", str(HERE), "--log-level", "warning")
        where = {"PROVIDER_URL": provider, "PUBLIC_URL": service, "RETRY_BASE": "400ms"}
        port = service.rpartition(":")[2]
        stack.enter_context(process(*server, "--port", port, **(where | os.environ)))
        await wait_for(f"{provider}/calls")
        await wait_for(f"{service}/appointments/0")
        async with httpx2.AsyncClient(base_url=service) as client:
            await book_and_watch(client)
        async with httpx2.AsyncClient(base_url=provider) as client:
            print("\nCalls that the provider made:")
            for call in (await client.get("/calls")).json():
                times = "time" if call["requests"] == 1 else "times"
                print(f"  {call['id']} to {call['to']}, asked for {call['requests']} {times}")


if __name__ == "__main__":
    asyncio.run(main())
