"""Webhooks: signatures, answers of every kind, and where they may not go."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import standardwebhooks
from standardwebhooks.webhooks import WebhookVerificationError

from duetime.channels.channel import NotSent, Sent
from duetime.channels.webhook import Webhook, make_secret
from duetime.engine.executor import describe_exception
from duetime.errors import InvalidInput
from tests.channels.conftest import Certificate
from tests.channels.http_server import Answer, HttpServer
from tests.channels.messages import message
from tests.channels.receivers import SECRET

Make = Callable[..., Webhook]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes webhooks that may reach this machine, and closes them."""
    made: list[Webhook] = []

    def make(**options: Any) -> Webhook:
        made.append(Webhook(**{"secrets": [SECRET], "allow": ["127.0.0.1"], **options}))
        return made[-1]

    yield make
    for channel in made:
        await channel.close()


async def refusal(channel: Webhook, url: str, **changes: Any) -> NotSent:
    with pytest.raises(NotSent) as failure:
        await channel.send(message(address=url, **changes))
    return failure.value


# What is sent


async def test_the_body_is_the_event(http: HttpServer, make: Make) -> None:
    await make().send(message(address=http.url))

    request = http.requests[0]
    assert (request.method, request.path) == ("POST", "/hook")
    assert request.headers["host"] == f"127.0.0.1:{http.port}"
    assert request.json == {
        "type": "reminder.due",
        "timestamp": "2026-03-06T14:00:00Z",
        "data": {
            "subject": "game:42",
            "recipient": "ann",
            "rule": "-1h",
            "offset_minutes": 60,
            "due_at": "2026-03-06T14:00:00Z",
            "key": "dtr_4f1a",
            "data": {"place": "Café Central", "seats": 2},
            "title": "Chess in an hour",
            "body": "Bring a clock.",
        },
    }


async def test_the_library_verifies_the_signature(http: HttpServer, make: Make) -> None:
    # A clock in another zone: the library would take its digits for UTC.
    here = timezone(timedelta(hours=9))
    await make(clock=lambda: datetime.now(here)).send(message(address=http.url))

    request = http.requests[0]
    body = standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)
    assert body["data"]["key"] == request.headers["webhook-id"]


async def test_a_changed_body_is_not_verified(http: HttpServer, make: Make) -> None:
    await make().send(message(address=http.url))

    request = http.requests[0]
    with pytest.raises(WebhookVerificationError):
        standardwebhooks.Webhook(SECRET).verify(
            request.body.replace(b"ann", b"eve"), request.headers
        )


async def test_both_secrets_verify_during_a_rotation(http: HttpServer, make: Make) -> None:
    new, old = make_secret(), make_secret()

    await make(secrets=[new, old]).send(message(address=http.url))

    request = http.requests[0]
    for secret in (new, old):
        assert standardwebhooks.Webhook(secret).verify(request.body, request.headers)
    with pytest.raises(WebhookVerificationError):
        standardwebhooks.Webhook(make_secret()).verify(request.body, request.headers)


async def test_each_receiver_can_have_its_own_secret(http: HttpServer, make: Make) -> None:
    secrets = {"ann": make_secret(), "bob": make_secret()}
    channel = make(secrets=lambda message: [secrets[message.recipient]])

    for recipient in secrets:
        await channel.send(message(address=http.url, recipient=recipient))

    for request, secret in zip(http.requests, secrets.values(), strict=True):
        assert standardwebhooks.Webhook(secret).verify(request.body, request.headers)


async def test_an_id_holds_no_full_stop(http: HttpServer, make: Make) -> None:
    channel = make()

    for _ in range(2):
        await channel.send(message(address=http.url, key="user.7@2026-03-06T14:00:00.5Z"))

    first, second = (request.headers["webhook-id"] for request in http.requests)
    assert first == second
    assert "." not in first
    for request in http.requests:
        assert standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)


@pytest.mark.parametrize("secrets", [[], "whsec_AAAA", ["whsec_"], ["whsec_ä"]])
def test_secrets_are_checked_at_once(secrets: Any) -> None:
    with pytest.raises(InvalidInput, match="secret"):
        Webhook(secrets=secrets)


@pytest.mark.parametrize(
    "headers",
    [{"Host": "other"}, {"webhook-id": "x"}, {"X-A": "1\r\nX-B: 2"}, {"X A": "1"}, {"X-A": "ü"}],
)
def test_headers_that_would_break_the_request_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="header"):
        Webhook(secrets=[SECRET], headers=headers)


async def test_own_headers_are_sent(http: HttpServer, make: Make) -> None:
    await make(headers={"Authorization": "Bearer 7"}).send(message(address=http.url))

    assert http.requests[0].headers["authorization"] == "Bearer 7"


async def test_data_that_are_not_json_last(http: HttpServer, make: Make) -> None:
    failure = await refusal(make(), http.url, data={"what": object()})

    assert "JSON" in str(failure)
    assert not failure.transient
    assert http.requests == []


# What is answered


@pytest.mark.parametrize(
    ("answer", "external_id"),
    [
        (Answer(200, body=b'{"id": "in_7"}'), "in_7"),
        (Answer(201, body=b'{"id": 7}'), "7"),
        (Answer(202, {"X-Receipt": "r-9"}, b'{"id": "in_7"}'), "r-9"),
        (Answer(204), None),
        (Answer(200, body=b"<html>thanks</html>"), None),
        (Answer(200, body=b'["id"]'), None),
        (Answer(200, body=b'{"id": {"deep": 1}}'), None),
    ],
)
async def test_2xx_is_sent(
    http: HttpServer, make: Make, answer: Answer, external_id: str | None
) -> None:
    http.answer = lambda _: answer

    sent = await make(id_header="X-Receipt").send(message(address=http.url))

    assert sent == Sent(external_id)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
async def test_these_may_pass(http: HttpServer, make: Make, status: int) -> None:
    http.answer = lambda _: Answer(status, body=b"busy\x1b[31m")

    failure = await refusal(make(), http.url)

    assert failure.transient
    assert str(failure) == f"127.0.0.1 answered {status}: busy[31m."


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
async def test_these_last(http: HttpServer, make: Make, status: int) -> None:
    http.answer = lambda _: Answer(status)

    failure = await refusal(make(), http.url)

    assert not failure.transient
    assert not failure.disable


async def test_410_disables(http: HttpServer, make: Make) -> None:
    http.answer = lambda _: Answer(410)

    failure = await refusal(make(), http.url)

    assert failure.disable
    assert not failure.transient


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(http: HttpServer, make: Make, status: int) -> None:
    http.answer = lambda _: Answer(status, {"location": f"http://127.0.0.1:{http.port}/secret"})

    failure = await refusal(make(), http.url)

    assert "redirect" in str(failure)
    assert not failure.transient
    assert [request.path for request in http.requests] == ["/hook"]


NOW = datetime(2026, 3, 6, 14, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "120"}, timedelta(minutes=2)),
        ({"retry-after": "0"}, timedelta(0)),
        ({"retry-after": "9" * 400}, timedelta(hours=1)),
        ({"retry-after": "Fri, 06 Mar 2026 14:10:00 GMT"}, timedelta(minutes=10)),
        ({"retry-after": "Fri, 06 Mar 2026 13:00:00 GMT"}, timedelta(0)),
        # By the receiver's clock, which runs an hour ahead of ours.
        (
            {
                "retry-after": "Fri, 06 Mar 2026 15:10:00 GMT",
                "date": "Fri, 06 Mar 2026 15:00:00 GMT",
            },
            timedelta(minutes=10),
        ),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({}, None),
    ],
)
async def test_retry_after_is_honoured_within_a_limit(
    http: HttpServer, make: Make, headers: dict[str, str], wait: timedelta | None
) -> None:
    http.answer = lambda _: Answer(503, headers)

    failure = await refusal(make(clock=lambda: NOW), http.url)

    assert failure.retry_after == wait


async def test_a_late_answer_is_a_time_out(http: HttpServer, make: Make) -> None:
    http.answer = lambda _: Answer(wait=asyncio.Event())

    failure = await refusal(make(read_timeout="100ms"), http.url)

    assert failure.transient
    assert "too long" in str(failure)


async def test_a_head_that_drips_ends_with_the_whole_time_out(make: Make) -> None:
    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                writer.write(b"H")
                await writer.drain()
                await asyncio.sleep(0.02)
        except ConnectionError:
            pass

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        begun = time.monotonic()

        failure = await refusal(
            make(timeout="200ms"), f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        )

    assert failure.transient
    assert time.monotonic() - begun < 20, "it would drip for minutes"


async def test_accepted_counts_although_the_body_never_ends(http: HttpServer, make: Make) -> None:
    http.answer = lambda _: Answer(200, body=b'{"id": "' + b"x" * 1000, drip=0.05)
    begun = time.monotonic()

    sent = await make(timeout="200ms").send(message(address=http.url))

    assert sent == Sent(None)
    assert time.monotonic() - begun < 20, "it would drip for minutes"


async def test_a_large_body_is_not_read_to_its_end(http: HttpServer, make: Make) -> None:
    http.answer = lambda _: Answer(200, {"content-length": "1000000000000"}, b" " * 300_000)

    sent = await make(max_answer_bytes=1000).send(message(address=http.url))

    assert sent == Sent(None)


async def test_a_connection_that_is_cut_may_pass(make: Make) -> None:
    async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert (await refusal(make(), f"http://127.0.0.1:{port}/")).transient
    # Now nobody listens at all.
    assert (await refusal(make(), f"http://127.0.0.1:{port}/")).transient


async def test_a_connection_is_used_again(http: HttpServer, make: Make) -> None:
    channel = make()

    for _ in range(3):
        await channel.send(message(address=http.url))

    assert http.connections == 1


async def test_what_a_url_hides_is_not_told(http: HttpServer, make: Make) -> None:
    http.answer = lambda _: Answer(500)

    failure = await refusal(make(), f"{http.url}/T0KEN?password=hunter2")

    assert "T0KEN" not in str(failure)
    assert "hunter2" not in str(failure)


# Where it may not go


async def test_proxies_of_the_environment_are_not_used(
    http: HttpServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")

    await make().send(message(address=http.url))

    assert len(http.requests) == 1


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_SET",
        "//example.com/",
        "example.com",
        "http://",
        "http://user:password@example.com/",
        "http://user@example.com/",
        "http://127.0.0.1\\@example.com/",
        "http://exa mple.com\r\n/",
        "http://example.com:22/",
        "http://example.com:25/",
        "http://example.com:99999/",
        "",
    ],
)
async def test_a_url_that_is_not_for_us_is_refused(make: Make, url: str) -> None:
    async def never(host: str, port: int) -> list[str]:
        raise AssertionError("it was resolved")

    failure = await refusal(make(resolve=never), url)

    assert not failure.transient
    assert "password" not in str(failure).replace("or a password", "")


async def test_without_a_url_nothing_is_sent(make: Make) -> None:
    with pytest.raises(NotSent, match="has a URL"):
        await make().send(message())


def test_the_channels_own_url_is_checked_at_once() -> None:
    with pytest.raises(InvalidInput, match="port 22"):
        Webhook("http://example.com:22/", secrets=[SECRET])


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[fe80::1]",
    ],
)
async def test_no_spelling_of_this_machine_is_reached(
    http: HttpServer, make: Make, host: str
) -> None:
    failure = await refusal(make(allow=()), f"http://{host}:{http.port}/")

    assert not failure.transient
    assert "outside the public internet" in str(failure)
    assert http.connections == 0


async def test_a_redirect_to_this_machine_reaches_nothing(http: HttpServer, make: Make) -> None:
    """The first host is allowed by name; where it points to is not even looked at."""
    inner = HttpServer()
    async with inner.listening():
        http.answer = lambda _: Answer(302, {"location": inner.url})

        await refusal(make(), http.url)

        assert inner.connections == 0


class Names:
    """A resolver that answers from a list, one answer after the other."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        return self.answers.pop(0)


async def test_one_private_address_among_others_is_enough(http: HttpServer, make: Make) -> None:
    names = Names(["93.184.215.14", "127.0.0.1"])

    failure = await refusal(make(allow=(), resolve=names), f"http://hooks.example:{http.port}/")

    assert "outside the public internet" in str(failure)
    assert http.connections == 0


async def test_a_name_that_changes_its_mind_gains_nothing(http: HttpServer, make: Make) -> None:
    """DNS rebinding: whoever looked again for connecting would find the server. Nobody does."""
    names = Names(["127.0.0.9"], ["127.0.0.1"])
    channel = make(allow=["127.0.0.9"], resolve=names)

    failure = await refusal(channel, f"http://hooks.example:{http.port}/")

    assert failure.transient, "the address was fine, but nobody listens there"
    assert names.asked == 1
    assert http.connections == 0
    assert "outside the public internet" in str(
        await refusal(channel, f"http://hooks.example:{http.port}/")
    )
    assert http.connections == 0


@pytest.mark.parametrize("allow", [(), ["127.0.0.9"]], ids=["refused", "unreachable"])
async def test_errors_do_not_name_the_address(
    http: HttpServer, make: Make, allow: list[str]
) -> None:
    """Whoever may read them could explore our network with host names of their own."""
    channel = make(allow=allow, resolve=Names(["127.0.0.9"]))

    failure = await refusal(channel, f"http://hooks.example:{http.port}/")

    assert "127.0.0.9" not in "".join(traceback.format_exception(failure))
    assert "127.0.0.9" not in describe_exception(failure)


async def test_it_connects_to_the_address_that_was_checked(http: HttpServer, make: Make) -> None:
    channel = make(allow=["127.0.0.0/8"], resolve=Names(["127.0.0.1"]))

    await channel.send(message(address=f"http://hooks.example:{http.port}/x"))

    assert http.requests[0].headers["host"] == f"hooks.example:{http.port}"


async def test_the_next_address_is_tried(http: HttpServer, make: Make) -> None:
    channel = make(allow=["127.0.0.0/8"], resolve=Names(["127.0.0.9", "127.0.0.1"]))

    await channel.send(message(address=f"http://hooks.example:{http.port}/"))

    assert len(http.requests) == 1


async def test_tls_is_checked_against_the_name(make: Make, certificate: Certificate) -> None:
    server = HttpServer()
    async with server.listening(certificate.server):
        options = {"allow": ["127.0.0.0/8"], "ssl_context": certificate.client}
        right = make(resolve=Names(["127.0.0.1"]), **options)
        wrong = make(resolve=Names(["127.0.0.1"]), **options)
        stranger = make(resolve=Names(["127.0.0.1"]), allow=["127.0.0.0/8"])

        await right.send(message(address=f"https://hooks.example:{server.port}/"))
        mismatch = await refusal(wrong, f"https://other.example:{server.port}/")
        distrust = await refusal(stranger, f"https://hooks.example:{server.port}/")

    assert len(server.requests) == 1
    for failure in (mismatch, distrust):
        assert "CERTIFICATE_VERIFY_FAILED" in str(failure)


async def test_two_names_at_one_address_have_connections_of_their_own(make: Make) -> None:
    server = HttpServer()
    async with server.listening():
        channel = make(allow=["127.0.0.0/8"], resolve=Names(["127.0.0.1"], ["127.0.0.1"]))

        for host in ("a.example", "b.example"):
            await channel.send(message(address=f"http://{host}:{server.port}/"))

    assert server.connections == 2


async def test_a_host_may_be_allowed_by_name(http: HttpServer, make: Make) -> None:
    channel = make(allow=["Hooks.Internal"], resolve=Names(["127.0.0.1"], ["127.0.0.1"]))

    await channel.send(message(address=f"http://hooks.internal:{http.port}/"))

    await refusal(channel, f"http://other.internal:{http.port}/")
    assert len(http.requests) == 1


async def test_private_addresses_may_all_be_allowed(http: HttpServer, make: Make) -> None:
    await make(allow=(), allow_private=True).send(message(address=http.url))

    assert len(http.requests) == 1


async def test_ports_can_be_chosen(http: HttpServer, make: Make) -> None:
    await make(ports=[http.port]).send(message(address=http.url))

    failure = await refusal(make(ports=[443]), http.url)
    assert str(http.port) in str(failure)
    assert len(http.requests) == 1


async def test_a_name_that_is_not_found_may_be_found_later(make: Make) -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    failure = await refusal(make(resolve=unknown), "https://hooks.example/")

    assert failure.transient
    assert "cannot be resolved" in str(failure)


async def test_a_resolver_that_hangs_is_a_time_out(make: Make) -> None:
    async def hang(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    failure = await refusal(make(resolve=hang, connect_timeout="100ms"), "https://hooks.example/")

    assert failure.transient
