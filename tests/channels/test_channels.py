"""What every channel does alike. One suite, run against each of them and a real receiver."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from duetime.channels.channel import NotSent
from tests.channels.messages import message
from tests.channels.receivers import Receiver

EVERY = ("webhook", "rabbitmq", "email", "apprise", "console", "log")
# A logger drops what it cannot write, and does not tell.
CAN_FAIL_FOR_A_WHILE = ("webhook", "rabbitmq", "email", "apprise", "console")
OVER_A_NETWORK = ("webhook", "rabbitmq", "email", "apprise")

every = pytest.mark.parametrize("receiver", EVERY, indirect=True)
can_fail_for_a_while = pytest.mark.parametrize("receiver", CAN_FAIL_FOR_A_WHILE, indirect=True)
over_a_network = pytest.mark.parametrize("receiver", OVER_A_NETWORK, indirect=True)

_WITHOUT_KEY = ("apprise",)
"""Whose receivers do not see the message's key, and so cannot drop a second copy."""


@every
async def test_sends(receiver: Receiver) -> None:
    channel, address = await receiver.channel("working")

    await channel.send(message(address=address))

    assert len(await receiver.ids()) == 1
    await channel.close()


@every
async def test_the_receiver_knows_a_repetition_by_its_id(receiver: Receiver) -> None:
    channel, address = await receiver.channel("working")

    for key in ("a:1", "a:1", "a:2"):
        await channel.send(message(address=address, key=key))

    first, again, other = await receiver.ids()
    assert first == again
    assert (first != other) is (channel.name not in _WITHOUT_KEY)
    await channel.close()


@every
async def test_any_key_is_an_id(receiver: Receiver) -> None:
    channel, address = await receiver.channel("working")
    keys = ["plain", "v1.5/ü ö\r\nBcc: eve", "k" * 1000]

    for key in keys:
        await channel.send(message(address=address, key=key))

    ids = await receiver.ids()
    assert len(ids) == 3
    assert len(set(ids)) == (1 if channel.name in _WITHOUT_KEY else 3)
    await channel.close()


@every
async def test_many_sends_at_once(receiver: Receiver) -> None:
    channel, address = await receiver.channel("working")

    await asyncio.gather(
        *(channel.send(message(address=address, key=f"many:{n}")) for n in range(20))
    )

    assert len(await receiver.ids()) == 20
    await channel.close()


@can_fail_for_a_while
async def test_what_may_pass_is_told(receiver: Receiver) -> None:
    channel, address = await receiver.channel("overloaded")

    with pytest.raises(NotSent) as failure:
        await channel.send(message(address=address))

    assert failure.value.transient
    assert not failure.value.disable
    assert str(failure.value).endswith(".")
    await channel.close()


@every
async def test_what_lasts_is_told(receiver: Receiver) -> None:
    channel, address = await receiver.channel("refusing")

    with pytest.raises(NotSent) as failure:
        await channel.send(message(address=address))

    assert not failure.value.transient
    assert failure.value.retry_after is None
    await channel.close()


@over_a_network
async def test_silence_ends_with_the_time_out(receiver: Receiver) -> None:
    channel, address = await receiver.channel("silent")
    begun = time.monotonic()

    with pytest.raises(NotSent, match="within 300ms") as failure:
        await channel.send(message(address=address))

    assert 0.25 < time.monotonic() - begun < 20
    assert failure.value.transient
    await channel.close()


@over_a_network
async def test_a_send_can_be_cancelled(receiver: Receiver) -> None:
    channel, address = await receiver.channel("silent")
    sending = asyncio.create_task(channel.send(message(address=address)))
    await asyncio.wait([sending], timeout=0.05)
    assert not sending.done()

    sending.cancel()

    with pytest.raises(asyncio.CancelledError):
        await sending
    await channel.close()


@every
async def test_close_twice_and_send_again(receiver: Receiver) -> None:
    channel, address = await receiver.channel("working")
    await channel.close()
    await channel.send(message(address=address, key="a"))
    await channel.close()
    await channel.close()

    await channel.send(message(address=address, key="b"))

    assert len(await receiver.ids()) == 2
    await channel.close()


@over_a_network
async def test_a_failure_leaves_the_channel_usable(receiver: Receiver) -> None:
    channel, address = await receiver.channel("refusing")
    for _ in range(3):
        with pytest.raises(NotSent) as failure:
            await channel.send(message(address=address))

        assert not failure.value.transient
    await channel.close()


@pytest.mark.parametrize("channel", ["webhook", "rabbitmq", "email", "apprise"])
def test_without_its_library_a_channel_names_its_extra(channel: str) -> None:
    library = {"webhook": "httpx2", "rabbitmq": "aio_pika", "email": "aiosmtplib"}
    program = (
        f"import sys; sys.modules['{library.get(channel, channel)}'] = None\n"
        f"try: import duetime.channels.{channel}\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert f"pip install 'duetime[{channel}]'" in done.stdout
