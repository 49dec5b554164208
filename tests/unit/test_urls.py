"""Passwords in URLs: never shown, whatever characters they are made of."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duetime.domain.urls import check_postgres_url, hide_passwords, show_url
from duetime.errors import DuetimeError, InvalidDatabaseURL
from duetime.settings import Settings, load_settings
from duetime.storage.postgres.connection import make_dsn
from duetime.wiring import file_of

SECRET = "hunter2"
_ODD = st.text(alphabet="@/:?#%[]&= '\"\\,x\u2100\u0000\n", max_size=6)
PASSWORDS = st.builds(lambda before, after: f"{before}{SECRET}{after}", _ODD, _ODD)
SCHEMES = st.sampled_from(["postgresql", "postgres", "PostgreSQL", "mysql", "sqlite", "amqp", ""])


@given(SCHEMES, PASSWORDS)
@example("postgresql", f"a@{SECRET}")
@example("postgresql", f"{SECRET}%zz")
@example("postgresql", f"{SECRET}/12")
@example("postgresql", f"1/{SECRET}")
def test_no_error_shows_a_password(scheme: str, password: str) -> None:
    for url in (
        f"{scheme}://ann:{password}@127.0.0.1/shop",
        f"{scheme}://127.0.0.1/shop?user=ann&password={password}",
        f"{scheme}:ann:{password}@127.0.0.1/shop",
        f"host=127.0.0.1 password={password}",
    ):
        shown = [show_url(url), repr(Settings(database=url, listen_database=url))]
        for read in (file_of, make_dsn):
            try:
                read(url)
            except DuetimeError as error:
                shown.append(str(error))
        assert not [text for text in shown if SECRET in text]


@given(PASSWORDS)
def test_a_password_never_becomes_the_host_port_or_database(password: str) -> None:
    """What libpq takes for those appears in its errors when it connects."""
    from psycopg.conninfo import conninfo_to_dict

    try:
        read = conninfo_to_dict(make_dsn(f"postgresql://ann:{password}@127.0.0.1:1/shop"))
    except InvalidDatabaseURL:
        return
    assert not [name for name in ("host", "port", "dbname", "user") if SECRET in str(read[name])]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@db:5432/shop", "postgresql://…@db:5432/shop"),
        ("postgresql://db/shop", "postgresql://db/shop"),
        ("postgresql:///shop?host=/tmp&password=x", "postgresql:///shop"),
        ("mysql://ann:secret@db/shop", "mysql://…@db/shop"),
        ("postgresql+asyncpg://ann:a@b@db/shop", "postgresql+asyncpg://…@db/shop"),
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        ("host=db password=secret", "…"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert show_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db/shop",
        "postgresql:///shop?host=/var/run/postgresql",
        "postgresql://ann:p%40ss%2F@db:5432/shop?sslmode=require",
        "postgresql://ann:pa#s?s[@db/shop",
        "postgresql://ann@[::1]:5432,[::2],db:5433/shop",
        "postgresql://%2Fvar%2Flib/shop",
        "postgresql://",
    ],
)
def test_what_libpq_reads_is_accepted(url: str) -> None:
    assert check_postgres_url(url) == url
    make_dsn(url)


def test_several_hosts_lead_to_the_one_that_accepts_writes() -> None:
    from psycopg.conninfo import conninfo_to_dict

    url = "postgresql://ann:secret@a:1,b:2,c:3/shop"

    one, several = (conninfo_to_dict(make_dsn(given)) for given in ("postgresql://a/shop", url))
    given = conninfo_to_dict(make_dsn(f"{url}?target_session_attrs=any&connect_timeout=9"))

    assert (several["host"], several["port"]) == ("a,b,c", "1,2,3")
    assert several["target_session_attrs"] == "read-write"
    assert one.get("target_session_attrs") is None
    assert int(str(several["connect_timeout"])) < int(str(one["connect_timeout"]))
    assert (given["target_session_attrs"], given["connect_timeout"]) == ("any", "9")
    assert load_settings({"database": url}).shown()["database"] == "postgresql://…@a:1,b:2,c:3/shop"


def test_a_special_character_is_refused_with_the_way_to_write_it() -> None:
    with pytest.raises(InvalidDatabaseURL, match="@ as %40"):
        make_dsn("postgresql://ann:p@ss@db/shop")


def test_spaces_around_a_url_do_not_matter() -> None:
    settings = load_settings(environment={"DUETIME_DATABASE": " postgresql://db/shop\n"})

    assert settings.database == "postgresql://db/shop"


@given(PASSWORDS.filter(lambda text: not any(c.isspace() for c in text)))
def test_text_of_others_is_cleaned(password: str) -> None:
    for scheme in ("postgresql", "amqps", "json"):
        text = f"cannot use {scheme}://ann:{password}@host/shop here"

        assert hide_passwords(text).endswith("host/shop here")
        assert SECRET not in hide_passwords(text)
