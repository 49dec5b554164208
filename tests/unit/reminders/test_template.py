"""Templates: what people write in them, and what attackers do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duetime.reminders.templates.limits import MAX_SOURCE_LENGTH, MAX_TEXT_LENGTH, TemplateError
from duetime.reminders.templates.moments import in_words
from duetime.reminders.templates.template import Template
from tests.waiting import cpu_at_most

NOW = datetime(2026, 3, 6, 12, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "subject": "game:42",
    "recipient": "ann",
    "due": datetime(2026, 3, 6, 14, tzinfo=UTC),
    "data": {
        "title": "Chess",
        "price": 12.5,
        "items": ["clock", "board"],
        "players": [{"name": "ann", "elo": 1900}, {"name": "bob", "elo": 1700}],
        "starts": "2026-07-01T18:30:00+02:00",
        "nothing": None,
        "long": "x" * 1000,
    },
}


def render(source: str, *, tz: str = "UTC", **values: Any) -> str:
    return Template(source).render({**VALUES, **values}, now=NOW, tz=tz)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("Hello {{ recipient }}!", "Hello ann!"),
        ("{{ data.title | upper }} & <b>", "CHESS & <b>"),
        ("{{ due | local('Europe/Berlin') }}", "2026-03-06 15:00"),
        ("{{ due | local('America/New_York', '%a %-d %b, %H:%M %Z') }}", "Fri 6 Mar, 09:00 EST"),
        ("{{ data.starts | local('Europe/London', '%H:%M') }}", "17:30"),
        ("{{ due }}", "2026-03-06 14:00 UTC"),
        ("{{ due | in_words }}", "in 2 hours"),
        ("{{ (due - now) | in_words }}", "2 hours"),
        ("{{ '%.2f' | format(data.price) }} €", "12.50 €"),
        ("{{ data.price * 2 + 1 }}", "26.0"),
        ("{{ data.items | join(', ') }}", "clock, board"),
        ("{{ data['items'][0] }}, {{ data.items | last }}", "clock, board"),
        ("{{ data.players | map(attribute='name') | join(' v ') }}", "ann v bob"),
        (
            "{% for p in data.players|sort(attribute='elo') %}{{loop.index}}{{p.name}} {%endfor%}",
            "1bob 2ann ",
        ),
        ("{% for n in range(3) %}{{ n }}{% endfor %}", "012"),
        ("{% for k, v in data.players[0]|items %}{{k}}={{v}};{% endfor %}", "name=ann;elo=1900;"),
        ("{% if data.price > 10 and 'x' in data.long %}dear{% else %}cheap{% endif %}", "dear"),
        ("{{ data.venue | default('somewhere') }}", "somewhere"),
        ("{% if data.venue is defined %}there{% endif %}", ""),
        ("{{ data.nothing }}|{{ true }}|{{ 1 ~ '/' ~ 2 }}", "|yes|1/2"),
        ("{{ 'one two three' | truncate(9) }}", "one two…"),
        ("{{ 'a b' | urlencode }}", "a%20b"),
        ("{{ data.title[:2] }}{{ data.title | replace('ess', 'at') }}", "ChChat"),
        ("one\n{% if true %}\ntwo\n{% endif %}\nthree", "one\ntwo\nthree"),
        ("{# nobody sees this #}x", "x"),
    ],
)  # fmt: skip
def test_what_people_write(source: str, text: str) -> None:
    assert render(source, now=NOW) == text


def test_the_zone_of_the_rendering_is_the_default() -> None:
    source = "{{ due | local }} {{ due }}"

    assert render(source, tz="Asia/Tokyo") == "2026-03-06 23:00 2026-03-06 23:00 JST"


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(0), "0 seconds"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(seconds=59.4), "59 seconds"),
        (timedelta(seconds=59.9), "1 minute"),
        (timedelta(hours=1, seconds=-0.003), "1 hour"),
        (timedelta(minutes=90), "1 hour 30 minutes"),
        (timedelta(days=7), "7 days"),
        (timedelta(days=1, minutes=5), "1 day"),
        (-timedelta(days=2, hours=3, minutes=59), "2 days 3 hours"),
    ],
)
def test_spans_in_words(span: timedelta, words: str) -> None:
    assert in_words(span) == words


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ data.venue }}", "there is no 'venue' in an object"),
        ("{{ data.venue.name }}", "there is no 'venue' in an object"),
        ("{{ venue }}", "'venue' is undefined"),
        ("{% set x = 1 %}", "'set' is not allowed"),
        ("{{ data.venue + 1 }}", "there is no 'venue' in an object"),
        ("{{ venue | upper }}", "'venue' is undefined"),
        ("{% for x in venue %}{% endfor %}", "'venue' is undefined"),
        ("{{ data.players }}", "a list cannot be converted"),
        ("{{ data }}", "an object cannot be converted"),
        ("{{ data.title * 3 }}", r"a text \* a number"),
        ("{{ data.items + data.items }}", r"a list \+ a list"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ due | local('Mars/Base') }}", "no time zone"),
        ("{{ due | local('UTC', '%999999999d') }}", "not a valid time format"),
        ("{{ data.title | local }}", "Invalid isoformat"),
        ("{{ '2026-03-06T14:00' | local }}", "not a time with a time zone"),
        ("{{ data.title | nofilter }}", "No filter named 'nofilter'"),
        ("{{ data.title }", "unexpected '}'"),
        ("{% if %}", "Expected an expression"),
        ("{{ '%s %s' | format(1) }}", "not enough arguments"),
    ],
)
def test_what_is_wrong_is_told(source: str, says: str) -> None:
    with pytest.raises(TemplateError, match=says):
        render(source)


def test_the_line_is_told() -> None:
    with pytest.raises(TemplateError, match=r"^Line 3 of the template: ") as failure:
        render("one\ntwo\n{{ data.venue }}")

    assert failure.value.line == 3


def test_syntax_is_checked_before_it_is_used() -> None:
    with pytest.raises(TemplateError, match=r"^Line 2 of the template: "):
        Template("fine\n{% endfor %}")


INTERNALS = [
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ ['' ] | map(attribute='__class__') | first }}",
    "{{ [''] | map('attr', '__class__') | first }}",
    "{{ data.__class__.__mro__ }}",
    "{{ data['__class__'] }}",
    "{{ data.items.__self__ }}",
    "{{ due.tzinfo }}",
    "{{ due.__reduce__ }}",
    "{{ due.strftime }}",
    "{{ data.title.upper }}",
    "{{ data.title.upper() }}",
    "{{ data.title.format(1) }}",
    "{{ '{0.__class__}'.format(data) }}",
    "{{ '{0.__class__}' | format(data) }}",
    "{{ '%(a)s' | format(data) }}",
    "{{ '%s' | format(data) }}",
    "{{ data.update({'a': 1}) }}",
    "{{ data.items() }}",
    "{{ range.__globals__ }}",
    "{{ range(3).__class__ }}",
    "{{ self }}",
    "{{ self._TemplateReference__context }}",
    "{{ self.__init__.__globals__ }}",
    "{% for x in self %}{{ x }}{% endfor %}",
    "{{ lipsum }}",
    "{{ cycler }}",
    "{{ namespace }}",
    "{{ dict }}",
    "{{ config }}",
    "{{ environment }}",
    "{{ context }}",
    "{{ caller() }}",
    "{{ thing }}",
    "{{ thing.secret }}",
    "{{ thing['secret'] }}",
    "{{ thing() }}",
    "{{ thing | string }}",
    "{{ thing | upper }}",
    "{{ thing ~ '' }}",
    "{{ [thing] | join }}",
    "{{ [thing] | map(attribute='secret') | join }}",
    "{{ [thing] | join('', 'secret') }}",
    "{{ [thing] | sort(attribute='secret') | first }}",
    "{% for x in thing %}{% endfor %}",
    "{% for range in [thing] %}{{ range() }}{% endfor %}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for x in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{% for x in [1] %}{{ loop._iterable }}{% endfor %}",
    "{% for x in [1] %}{{ loop }}{% endfor %}",
    "{% for x in [1] %}{{ loop.cycle('a') }}{% endfor %}",
    "{% set x = 1 %}{{ x }}",
    "{% set x %}a{% endset %}",
    "{% with x = 1 %}{{ x }}{% endwith %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% call(x) m() %}{% endcall %}",
    "{% filter upper %}a{% endfilter %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% from 'os' import system %}",
    "{% extends 'base' %}",
    "{% block a %}{% endblock %}",
    "{% do 1 %}",
    "{% raw %}{{ '{{' }}{% endraw %}{{ ().__class__ }}",
    "{{ {'a': 1} }}",
    "{{ (lambda: 1)() }}",
]  # fmt: skip


class Thing:
    """What should never be among the values: an object of the application."""

    secret = "s3cret"

    def __call__(self) -> str:
        return self.secret

    def __iter__(self) -> Any:
        return iter([self.secret])

    def __str__(self) -> str:
        return self.secret


@pytest.mark.parametrize("source", INTERNALS)
def test_nothing_of_python_is_reached(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source, thing=Thing())


COSTS = [
    "{{ 'a' * 1000000000 }}",
    "{{ [1] * 1000000000 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ 999999999999 * 999999999999 * 999999999999 }}",
    "{{ " + "9" * 5000 + " }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '%99999s' | format('a') }}",
    "{{ '%.1000000000f' | format(1) }}",
    "{{ 1.5 | round(1000000000) }}",
    "{{ 1.5 | round(-5, 'ceil') }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a' | indent(1000000000) }}",
    "{{ range(1000000000) | list }}",
    "{{ range(100000) | join }}",
    "{% for i in range(100000) %}{% endfor %}",
    "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
    "{% for a in range(999) %}{% for b in range(999) %}{{ a }}{% endfor %}{% endfor %}",
    "{% for a in [1] %}" * 4 + "{% endfor %}" * 4,
    "{{ data.long | replace('x', data.long) }}",
    "{{ data.long | replace('', data.long) }}",
    "{{ range(999) | join(data.long) }}",
    "{% for a in range(999) %}{{ data.long }}{% endfor %}",
    "{% for a in range(999) %}{% if data.long[1:] == data.long[:-1] %}{% endif %}{% endfor %}" * 8,
    "{{ " + " + ".join(["data.long"] * 100) + " }}",
    "{{ " + " ~ ".join(["data.long"] * 100) + " }}",
    "{{ [" + "1," * 100 + "] | join }}",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "{{ 1" + " | int" * 2000 + " }}",
    "{{ " + "-" * 9000 + "1 }}",
    "{% if 1 %}" * 700 + "{% endif %}" * 700,
    "x" * (MAX_SOURCE_LENGTH + 1),
]


@pytest.mark.parametrize("source", COSTS, ids=lambda source: source[:40])
def test_what_costs_too_much_is_stopped_soon(source: str) -> None:
    with cpu_at_most(2), pytest.raises(TemplateError):
        render(source)


LARGE: dict[str, Any] = {
    "many": list(range(15_000)),
    "same": list(range(15_000)),
    "deep": [[list(range(15_000))]],
    "deeper": [[list(range(15_000))]],
    "object": {str(number): number for number in range(15_000)},
    "word": "x" * 60_000,
    "other": "x" * 60_000,
}
LOOP = "{{% for a in range(1000) %}}{{% for b in range(9) %}}{}{{% endfor %}}{{% endfor %}}"


@pytest.mark.parametrize(
    "inner",
    [
        "{{ many | max }}",
        "{{ many | min }}",
        "{{ many | sort | first }}",
        "{{ many | unique | list | first }}",
        "{{ many | map('abs') | max }}",
        "{{ many | reverse | list | first }}",
        "{{ many | select('even') | list | length }}",
        "{{ object | max }}",
        "{{ object | items | list | length }}",
        "{{ many[1:] | length }}",
        "{% if -1 in many %}{% endif %}",
        "{% if many == same %}{% endif %}",
        "{% if deep == deeper %}{% endif %}",
        "{% if deep is eq deeper %}{% endif %}",
        "{% if [deep] | max == deeper %}{% endif %}",
        "{% if -1 is in many %}{% endif %}",
        "{% if word == other %}{% endif %}",
        "{% if 'y' in word %}{% endif %}",
        "{{ word | upper | length }}",
        "{{ word | replace('y', 'z') | length }}",
    ],
)
def test_going_through_a_large_value_counts(inner: str) -> None:
    template = Template(LOOP.format(inner))

    with cpu_at_most(1), pytest.raises(TemplateError, match=r"too many steps|longer than"):
        template.render(LARGE, now=NOW)


def test_a_large_value_can_be_used_a_few_times() -> None:
    source = "{{ many | max }} {{ many | sort | last }} {{ 7 in many }} {{ many == same }}"

    assert Template(source).render(LARGE, now=NOW) == "14999 14999 yes yes"


def test_the_text_has_a_limit() -> None:
    source = "{% for i in range(64) %}{{ data.long }}{% endfor %}"

    assert len(render(source)) == 64_000
    with pytest.raises(TemplateError, match="longer than 65,536"):
        render("{% for i in range(66) %}{{ data.long }}{% endfor %}")
    assert MAX_TEXT_LENGTH == 65_536


def test_the_values_stay_as_they_are() -> None:
    before = repr(VALUES)

    render("{% for p in data.players | sort(attribute='elo') | reverse %}{{ p.name }}{% endfor %}")

    assert repr(VALUES) == before


def test_a_plain_installation_renders_templates() -> None:
    """No extra is needed: only what the package itself depends on is imported."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    plain = {re.split("[<>=]", one)[0] for one in project["dependencies"]}
    program = (
        "import json, sys\n"
        "from importlib.metadata import packages_distributions as distributions\n"
        "from duetime import Duetime\n"
        "app = Duetime('sqlite:///never.db')\n"
        "app.template('soon', body='{{ data.title }}')\n"
        "known = distributions()\n"
        "used = {one for name in sys.modules for one in known.get(name, ())}\n"
        "print(json.dumps(sorted(one.lower() for one in used)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    used = set(json.loads(done.stdout)) - {"duetime", "setuptools"}
    assert "jinja2" in used
    assert used <= plain | {"markupsafe", "typing-extensions", "typing_extensions"}
