"""What a reminder or a digest says: its template, or plain text and times on the reader's clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.channels.channel import Message
from duetime.domain.checks import check_name
from duetime.domain.reminders.digest import Digest
from duetime.domain.reminders.reminder import Reminder
from duetime.errors import InvalidInput
from duetime.reminders.templates.limits import TemplateError
from duetime.reminders.templates.moments import local, until_in_words
from duetime.reminders.templates.template import Template

if TYPE_CHECKING:
    from duetime.api.registration import Registrations

_SOON = timedelta(days=6)
_MAX_FILE_BYTES = 64 * 1024


class MessageTemplate(msgspec.Struct, frozen=True):
    """The texts of a message. Without a title it is the subject's."""

    body: Template
    title: Template | None


class Messages:
    """The app's templates by name, and how messages are made from them."""

    def __init__(self, registrations: Registrations) -> None:
        self._templates: dict[str, MessageTemplate] = {}
        self._registrations = registrations
        self.digest: str | None = None
        """The name of the digests' template."""

    def add(self, name: str, *, body: str, title: str | None = None) -> None:
        """Keep a template under its name. Raises `TemplateError` if it cannot be read."""
        check_name(name, what="template")
        made = MessageTemplate(
            _read(name, "body", body), None if title is None else _read(name, "title", title)
        )
        self._registrations.add(
            f"template {name!r}", _source(made), advice="Give one of them another name."
        )
        self._templates[name] = made

    def add_folder(self, folder: str | Path) -> list[str]:
        """Keep every `NAME.txt` of a folder; return their names, sorted.

        The first line is the title, if an empty line follows it; the rest is the body.
        """
        path = Path(folder)
        if not path.is_dir():
            raise InvalidInput(f"There is no template folder {str(path)!r}.")
        names = []
        for file in sorted(path.glob("*.txt")):
            if file.stat().st_size > _MAX_FILE_BYTES:
                raise InvalidInput(f"{file} is too long to be a template.")
            try:
                text = file.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                raise InvalidInput(f"{file} is not valid UTF-8.") from None
            first, _, rest = text.partition("\n")
            titled = rest.startswith(("\n", "\r\n")) and bool(rest.strip())
            self.add(
                file.stem,
                title=first.strip() if titled else None,
                body=(rest if titled else text).strip("\r\n"),
            )
            names.append(file.stem)
        return names

    def use_for_digests(self, name: str) -> None:
        """Make digests by the template of this name."""
        check_name(name, what="template")
        self._registrations.add(
            "template of digests", name, advice="Digests have one: name it once."
        )
        self.digest = name

    def make(
        self,
        reminder: Reminder,
        *,
        address: str | None,
        now: datetime,
        key: str | None = None,
        tz: str | None = None,
    ) -> Message:
        """Return the message of a reminder, under its own key unless `key` is given. `tz` is the
        reader's clock, if it is known.

        Raises `InvalidInput` if its template is not there, or cannot be filled with its data.
        """
        zone = tz or reminder.tz
        values = _values(reminder, now=now, tz=zone)
        title, body = self._fill(reminder.rule.template, values, now=now, tz=zone)
        return Message(
            key=key or reminder.key,
            subject=reminder.subject,
            recipient=reminder.recipient,
            title=title,
            body=body,
            due_at=reminder.due_at,
            address=address,
            rule=reminder.rule.text,
            offset_minutes=reminder.offset_minutes,
            data=reminder.data,
        )

    def make_digest(self, digest: Digest, *, address: str | None, now: datetime) -> Message:
        """Return the message of a digest. Raises `InvalidInput` as `make` does."""
        zone = digest.to.tz or digest.reminders[0].tz
        values: dict[str, Any] = {"title": digest.title, "text": digest.body}
        if self.digest is not None:
            values |= {
                "recipient": digest.recipient,
                "tz": zone,
                "reminders": [
                    _values(one, now=now, tz=digest.to.tz or one.tz) for one in digest.reminders
                ],
            }
        title, body = self._fill(self.digest, values, now=now, tz=zone)
        return Message(
            key=digest.key,
            subject=f"digest:{digest.id}",
            recipient=digest.recipient,
            title=title,
            body=body,
            due_at=digest.reminders[0].due_at,
            address=address,
            data=digest.data,
            event="reminder.digest",
        )

    def _fill(
        self, name: str | None, values: dict[str, Any], *, now: datetime, tz: str
    ) -> tuple[str, str]:
        """The title and the body by a template, else the plain ones, which are among the values."""
        title, body = values["title"], values["text"]
        if name is None:
            return title, body
        if name not in self._templates:
            raise InvalidInput(
                f"there is no template {name!r} here: add it with app.template({name!r}, …)"
            )
        template = self._templates[name]
        try:
            if template.title is not None:
                title = template.title.render(values, now=now, tz=tz)
            return title, template.body.render(values, now=now, tz=tz)
        except TemplateError as error:
            raise InvalidInput(f"its template {name!r} cannot be filled: {error}") from error


def default_text(reminder: Reminder, *, now: datetime, tz: str) -> str:
    """Say what is due, how soon, and when that is on the clock of `tz`."""
    due = reminder.due_at
    far = abs(due - now) > _SOON
    year = " %Y" if local(due, tz, "%Y") != local(now, tz, "%Y") else ""
    when = local(due, tz, f"%a %-d %b{year} %H:%M" if far else "%a %H:%M")
    verb = "was due" if due < now - timedelta(seconds=1) else "is due"
    return f"{_title(reminder)} {verb} {until_in_words(due, now)} ({when}, {tz})"


def _values(reminder: Reminder, *, now: datetime, tz: str) -> dict[str, Any]:
    """What a template may say of a reminder."""
    return {
        "title": _title(reminder),
        "text": default_text(reminder, now=now, tz=tz),
        "subject": reminder.subject,
        "scope": reminder.scope,
        "recipient": reminder.recipient,
        "rule": reminder.rule.text,
        "offset_minutes": reminder.offset_minutes,
        "due": reminder.due_at,
        "time": reminder.time,
        "tz": tz,
        "data": reminder.data,
    }


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
