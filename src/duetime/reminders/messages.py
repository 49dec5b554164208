"""What a reminder says: its template, or a plain sentence with the time on the reader's clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from duetime.channels.channel import Message
from duetime.channels.moments import local, until_in_words
from duetime.channels.template import Template, TemplateError
from duetime.domain.job import check_name
from duetime.domain.reminder import Reminder
from duetime.errors import InvalidInput

_SOON = timedelta(days=6)
_LONGEST_FILE = 64 * 1024


class MessageTemplate(msgspec.Struct, frozen=True):
    """The texts of a message. Without a title it is the subject's."""

    body: Template
    title: Template | None


class Messages:
    """The app's templates by name, and how messages are made from them."""

    def __init__(self) -> None:
        self._templates: dict[str, MessageTemplate] = {}

    def add(self, name: str, *, body: str, title: str | None = None) -> None:
        """Keep a template under its name. Raises `TemplateError` if it cannot be read."""
        check_name(name, what="template")
        made = MessageTemplate(
            _read(name, "body", body), None if title is None else _read(name, "title", title)
        )
        known = self._templates.setdefault(name, made)
        if _source(known) != _source(made):
            raise InvalidInput(f"Two templates are named {name!r}. Give one another name.")

    def add_folder(self, folder: str | Path) -> list[str]:
        """Keep every `NAME.txt` of a folder; return their names, sorted.

        The first line is the title, if an empty line follows it; the rest is the body.
        """
        path = Path(folder)
        if not path.is_dir():
            raise InvalidInput(f"There is no folder {str(path)!r} with templates.")
        names = []
        for file in sorted(path.glob("*.txt")):
            if file.stat().st_size > _LONGEST_FILE:
                raise InvalidInput(f"{file} is too long for a template.")
            try:
                text = file.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                raise InvalidInput(f"{file} is not text in UTF-8.") from None
            first, _, rest = text.partition("\n")
            titled = rest.startswith(("\n", "\r\n")) and bool(rest.strip())
            self.add(
                file.stem,
                title=first.strip() if titled else None,
                body=(rest if titled else text).strip("\r\n"),
            )
            names.append(file.stem)
        return names

    def make(
        self, reminder: Reminder, *, address: str | None, now: datetime, tz: str | None = None
    ) -> Message:
        """Return the message of a reminder. `tz` is the reader's clock, if it is known.

        Raises `InvalidInput` if its template is not there, or cannot be filled with its data.
        """
        title = _title(reminder)
        zone = tz or reminder.tz
        body = default_text(reminder, now=now, tz=zone)
        name = reminder.rule.template
        if name is not None:
            if name not in self._templates:
                raise InvalidInput(
                    f"there is no template {name!r} here: add it with app.template({name!r}, …)"
                )
            template = self._templates[name]
            values = {
                "title": title,
                "text": body,
                "subject": reminder.subject,
                "scope": reminder.scope,
                "recipient": reminder.recipient,
                "rule": reminder.rule.text,
                "due": reminder.due_at,
                "time": reminder.time,
                "tz": zone,
                "data": reminder.data,
            }
            try:
                if template.title is not None:
                    title = template.title.render(values, now=now, tz=zone)
                body = template.body.render(values, now=now, tz=zone)
            except TemplateError as error:
                raise InvalidInput(f"its template {name!r} cannot be filled: {error}") from error
        return Message(
            key=reminder.key,
            subject=reminder.subject,
            recipient=reminder.recipient,
            title=title,
            body=body,
            due_at=reminder.due_at,
            address=address,
            rule=reminder.rule.text,
            data=reminder.data,
        )


def default_text(reminder: Reminder, *, now: datetime, tz: str) -> str:
    """Say what is due, how soon, and when that is on the clock of `tz`."""
    due = reminder.due_at
    far = abs(due - now) > _SOON
    year = " %Y" if local(due, tz, "%Y") != local(now, tz, "%Y") else ""
    when = local(due, tz, f"%a %-d %b{year} %H:%M" if far else "%a %H:%M")
    verb = "was due" if due < now - timedelta(seconds=1) else "is due"
    return f"{_title(reminder)} {verb} {until_in_words(due, now)} ({when}, {tz})"


def _title(reminder: Reminder) -> str:
    return str(reminder.data.get("title") or reminder.subject)


def _read(name: str, part: str, source: str) -> Template:
    if not isinstance(source, str):
        raise InvalidInput(f"The {part} of template {name!r} is text, not {source!r:.60}.")
    try:
        return Template(source)
    except TemplateError as error:
        raise TemplateError(f"Template {name!r}, {part}: {error}") from None


def _source(template: MessageTemplate) -> tuple[Any, ...]:
    return template.body.source, template.title and template.title.source
