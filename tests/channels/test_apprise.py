"""Apprise: several services, what their logs say, and whose addresses are taken."""

from __future__ import annotations

import asyncio

import pytest

from duetime.channels.apprise import Apprise
from duetime.channels.channel import NotSent
from duetime.errors import InvalidInput
from tests.channels.http_server import Answer, HttpServer
from tests.channels.messages import message


def url(server: HttpServer, path: str = "") -> str:
    return f"json://127.0.0.1:{server.port}/{path}?rto=2"


async def test_every_service_is_notified(http: HttpServer) -> None:
    channel = Apprise(url(http, "one"), url(http, "two"))

    await channel.send(message())

    assert [request.path for request in http.requests] == ["/one", "/two"]
    assert http.requests[0].json["title"] == "Chess in an hour"
    assert http.requests[0].json["message"] == "Bring a clock."
    await channel.close()


async def test_one_service_that_fails_fails_the_message(http: HttpServer) -> None:
    http.answer = lambda request: Answer(500 if request.path == "/two" else 200)
    channel = Apprise(url(http, "one"), url(http, "two"))

    with pytest.raises(NotSent) as failure:
        await channel.send(message())

    assert failure.value.transient
    assert "500" in str(failure.value)
    await channel.close()


async def test_each_failure_tells_its_own_reason(http: HttpServer) -> None:
    http.answer = lambda request: Answer(int(request.path.strip("/")))
    channel = Apprise(schemas=["json"])

    async def reason(status: int) -> str:
        with pytest.raises(NotSent) as failure:
            await channel.send(message(address=url(http, str(status))))
        return str(failure.value)

    statuses = [500, 502, 503, 504]
    reasons = await asyncio.gather(*map(reason, statuses))

    for status, told in zip(statuses, reasons, strict=True):
        assert f"error={status}" in told
        assert not any(f"error={other}" in told for other in statuses if other != status)
    await channel.close()


@pytest.mark.parametrize(
    "address",
    [
        "json://127.0.0.1:1/, dbus://",
        "dbus://",
        "jsons://127.0.0.1:1/",
        " dbus://json://",
        "127.0.0.1",
        "",
    ],
)
async def test_an_address_is_of_a_service_that_was_named(http: HttpServer, address: str) -> None:
    channel = Apprise(url(http), schemas=["json"], timeout="10s")

    with pytest.raises(NotSent) as failure:
        await channel.send(message(address=address))

    # The first one is read as one address, which nobody answers; the second is never looked at.
    assert failure.value.transient is address.startswith("json://")
    assert "dbus" not in str(failure.value) or address.strip().startswith("dbus")
    assert http.requests == []
    await channel.close()


async def test_no_service_at_all_lasts() -> None:
    with pytest.raises(NotSent, match="has a URL") as failure:
        await Apprise().send(message())

    assert not failure.value.transient


def test_a_url_that_apprise_cannot_read_is_told_without_its_token() -> None:
    with pytest.raises(InvalidInput, match="'nosuch'") as failure:
        Apprise("nosuch://T0KEN@host")

    assert "T0KEN" not in str(failure.value)


def test_a_text_is_not_a_list_of_schemas() -> None:
    with pytest.raises(InvalidInput, match=r"such as schemas=\['json'\]"):
        Apprise(schemas="json")
