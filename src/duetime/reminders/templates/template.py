"""Messages from templates that untrusted people may write.

Jinja2's sandbox, and less: plain data, a short list of filters, no calls, no assignments; and
limits on what it may cost. `sandbox` has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from duetime.reminders.templates.limits import MAX_SOURCE_LENGTH, TemplateError

if TYPE_CHECKING:
    from duetime.reminders.templates.sandbox import Program


class Template:
    """A text with places to fill. Reading it raises `TemplateError` if it is not a template.

    >>> Template("{{ data.title }}, {{ due | local('Europe/Berlin', '%H:%M') }}").render(
    ...     {"data": {"title": "Chess"}, "due": datetime(2026, 3, 6, 14, tzinfo=UTC)}
    ... )
    'Chess, 15:00'
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE_LENGTH:
            raise TemplateError(f"A template must have at most {MAX_SOURCE_LENGTH:,} characters.")
        self.source = source
        self._program = _compile(source)

    def render(
        self, values: Mapping[str, Any], *, now: datetime | None = None, tz: str = "UTC"
    ) -> str:
        """Fill it; raise `TemplateError` if a value is missing or it costs too much.

        `tz` is the time zone of `local` if the template names none, `now` what `in_words` counts
        from.
        """
        return self._program.run(values, now=now or datetime.now(UTC), tz=tz)


@lru_cache(maxsize=512)
def _compile(source: str) -> Program:
    # Jinja2 is imported with the first template: most apps have none.
    from duetime.reminders.templates.sandbox import compile_source

    return compile_source(source)
