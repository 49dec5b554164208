"""Rules in columns: SQL reads what Python reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetime.domain.reminders.rule_column import read_rules_column
from tests.conftest import fresh_database

SPANS = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from(["ms", "s", "m", "h", "d", "w"])),
    min_size=1, max_size=3,
).map(lambda parts: "".join(f"{number}{unit}" for number, unit in parts))  # fmt: skip
TEXTS = st.one_of(
    st.tuples(st.sampled_from(["-", "+", "", " - ", "--"]), SPANS).map("".join),
    st.tuples(
        st.sampled_from(["", "-1d ", "+2w ", "-2w1d ", "1d ", "-0d ", "-1h "]),
        st.sampled_from(["at 09:00", "at 9:00", "at 23:59:30", "at 24:00", "at 9", "AT 09:00"]),
    ).map("".join),
    st.tuples(SPANS, SPANS).map(lambda pair: f"every {pair[0]} within the last {pair[1]}"),
    st.sampled_from([
        "at 2026-05-01T09:00+02:00", "2026-05-01T09:00Z", "at 2026-05-01 09:00:30.25Z",
        "at 2026-02-30T09:00Z", "at 2026-05-01T09:00", "at 1950-01-01T00:00Z", "1.5h", "-1.5h",
        "-0.0001ms", "60", " 15 ", "0", "-5", "5260321", "5260320", "999999999", "soon", "", "null",
        "-1h\t", "-3653d", "-3654d", "every 1s within the last 1000s",
        "every 1s within the last 1001s",
        "٣", "-١h", "-1" + "0" * 50 + "h", "x" * 200,
    ]),
)  # fmt: skip
ITEMS = (
    TEXTS | st.integers(-10, 10_000_000) | st.sampled_from([None, True, 1.5, 60.0, [60], {"a": 1}])
)
VALUES = st.one_of(
    st.none(),
    ITEMS,
    st.lists(ITEMS, max_size=5),
    st.lists(ITEMS, max_size=5).map(json.dumps),
    st.lists(TEXTS, max_size=5).map(",".join),
    st.lists(TEXTS, max_size=5).map(lambda texts: "{" + ",".join(texts) + "}"),
    st.sampled_from(["[60", "{60", "{ }", "{}", "[]", "{60,NULL}", '{"-1d at 09:00",60}', "[[60]]",
                     list(range(51)), list(range(50)), '{"a": 1}']),
)  # fmt: skip


@pytest.fixture(scope="module")
def shared(postgres15: Any) -> Iterator[psycopg.Connection[Any]]:
    with (
        fresh_database(postgres15, tables=True) as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        yield connection


@settings(max_examples=400)
@given(value=VALUES)
def test_sql_reads_rules_of_a_column_as_python_does(
    shared: psycopg.Connection[Any], value: Any
) -> None:
    rules, problems = read_rules_column(value)

    [(stored, found)] = shared.execute(
        "select r.rules, to_json(r.problems) from duetime._read_rules(%s::jsonb) as r",
        [json.dumps(value)],
    )

    assert stored == (None if rules is None else [rule.to_json() for rule in rules])
    assert found == msgspec.to_builtins(problems)
    if rules:
        [(texts,)] = shared.execute("select duetime._rule_texts(%s::json)", [json.dumps(stored)])
        assert texts == [rule.text for rule in rules]
