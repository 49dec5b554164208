"""URLs that hold a password: which of them can be used, and what may be shown of them."""

from __future__ import annotations

import re

from duetime.errors import InvalidDatabaseURL

_URL = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)\S*@")
_KEYWORD = re.compile(r"(?i)\b(\w*password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&;]+)")
_NOT_ENCODED = re.compile(r"%(?![0-9A-Fa-f]{2})|%00|[\s\x00]")
_HOSTS = re.compile(r"(?:\[[^\]]*\]|[^:,]*)(?::[0-9]*)?(?:,(?:\[[^\]]*\]|[^:,]*)(?::[0-9]*)?)*")

HOW_TO_WRITE = (
    "Write postgresql://user:password@host:port/database, and percent-encode special characters "
    "in the user and the password: @ as %40, / as %2F, % as %25."
)


def show_url(url: str) -> str:
    """Return the URL without its user, password and parameters, for messages and logs.

    >>> show_url("postgresql://ann:secret@db:5432/shop?sslmode=require")
    'postgresql://…@db:5432/shop'
    >>> show_url("mysql://db/shop?password=secret")
    'mysql://db/shop'

    Where it is not certain which part is the password, that part is left out.

    >>> show_url("postgresql://ann:se?cr@et@db/shop")
    'postgresql://…'
    >>> show_url("host=db password=secret")
    '…'
    """
    found = _URL.fullmatch(url)
    if found is None:
        return "…"
    scheme, rest = found[1], found[2]
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    if "@" in rest[len(place) :]:
        return f"{scheme}://…"
    _, at, host = place.rpartition("@")
    return f"{scheme}://" + (f"…@{host}" if at else host)


def hide_passwords(text: str) -> str:
    """Return a text in which no URL and no keyword string shows its password.

    >>> hide_passwords("cannot read postgresql://ann:secret@db/shop")
    'cannot read postgresql://…@db/shop'
    >>> hide_passwords("host=db password='my secret' user=ann")
    'host=db password=… user=ann'
    """
    if "://" not in text and "assword" not in text.lower():
        return text
    return _KEYWORD.sub(r"\1…", _CREDENTIALS.sub(r"\1…@", text))


def check_postgres_url(url: str) -> str:
    """Return the URL; raise `InvalidDatabaseURL` if a special character in it is not encoded.

    libpq would read such a URL in another way than it was meant: a part of the password would
    become the host or the port, and would appear in its errors.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        return url
    rest = url.partition("://")[2]
    # As libpq does it: what ends at the first @ is user and password, unless a / comes before it.
    _, at, after = rest.partition("@")
    if at and "/" not in rest[: rest.index("@")]:
        rest = after
    place = rest.partition("?")[0]
    if _NOT_ENCODED.search(url) or "@" in place or not _HOSTS.fullmatch(place.partition("/")[0]):
        raise InvalidDatabaseURL(f"The database URL cannot be parsed. {HOW_TO_WRITE}")
    return url


def describe_parse_error(error: Exception) -> str:
    """Return what a library says about a URL, without what it quotes of it.

    >>> describe_parse_error(ValueError('invalid percent-encoded token: "secret%zz"'))
    'invalid percent-encoded token'
    """
    return re.split(r"[\"']", str(error).strip(), maxsplit=1)[0].rstrip(" :.,")
