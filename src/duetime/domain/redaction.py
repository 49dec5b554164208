"""What people are shown of arguments, results and errors: without secrets.

Only what is displayed is redacted. Handlers get, and the database holds, the real values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

import msgspec

from duetime.domain.urls import hide_passwords

T = TypeVar("T")
RedactHook = Callable[[str, Any, str | None], Any]
"""`def hide(field, value, task)`: returns what is shown of the field of a job or another record."""

REDACTED = "[redacted]"
DEFAULT_REDACT_NAMES = (
    "password", "passwd", "passphrase", "secret", "token", "authorization", "api_key", "apikey",
    "access_key", "private_key", "credential", "credentials", "cookie", "session_id", "ssn",
    "card_number", "cvv",
)  # fmt: skip

_DATA = frozenset({"args", "result", "progress", "facts", "before", "after", "output", "data"})
_TEXTS = frozenset({
    "broken", "error", "message", "pause_reason", "problem", "reason", "sentence", "traceback",
})  # fmt: skip
_PARTS = frozenset({"checks", "history", "log", "lines", "steps", "waits"})
"""Fields of records: JSON data, texts, and further records."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_MAX_VALUE = 4_000


class Redaction:
    """Hides what has one of these names, then asks the application's hooks.

    >>> hide = Redaction(("password", "api_key"))
    >>> hide.data({"user": "ann", "smtpPassword": "x", "API-Key": {"id": 7}})
    {'user': 'ann', 'smtpPassword': '[redacted]', 'API-Key': '[redacted]'}
    >>> hide.text("login failed: password=hunter2 for ann")
    'login failed: password=[redacted] for ann'
    """

    def __init__(self, names: Sequence[str], hooks: Sequence[RedactHook] = ()) -> None:
        self._names = [words for name in names if (words := _words(name))]
        self._hooks = hooks
        self._known: dict[str, bool] = {}
        spelled = "|".join("[-_ ]?".join(map(re.escape, words)) for words in self._names)
        self._in_text = spelled and re.compile(
            rf"(?i)(?<!\bby )((?:{spelled})s?[\"']?\s{{0,4}}[:=]\s{{0,4}})"
            rf"(?:(?:bearer|basic)\s{{1,4}}[^\s,;]{{1,{_MAX_VALUE}}}"
            rf"|\"[^\"]{{0,{_MAX_VALUE}}}\"|'[^']{{0,{_MAX_VALUE}}}'"
            rf"|[^\s,;&)}}\]\"']{{1,{_MAX_VALUE}}})"
        )

    def record(self, value: T, task: str | None = None) -> T:
        """Return a record, such as a `JobInfo`, or a list of them, as people are shown it."""
        if isinstance(value, msgspec.Struct):
            task = getattr(value, "task", None) or getattr(value, "flow", None) or task
            changes = {}
            for name in value.__struct_fields__:
                content = getattr(value, name)
                if content is None:
                    continue
                if name in _DATA or name in _TEXTS or name in _PARTS:
                    changes[name] = self._field(name, content, task)
                elif isinstance(content, (msgspec.Struct, list, tuple, dict)):
                    changes[name] = self.record(content, task)
            return msgspec.structs.replace(value, **changes) if changes else value
        if isinstance(value, tuple):
            items = [self.record(item, task) for item in value]
            # A named tuple takes its fields one by one.
            return value._make(items) if hasattr(value, "_make") else tuple(items)  # type: ignore[return-value]
        if isinstance(value, list):
            shown = copy(value)  # It may be a page, with its cursor.
            shown[:] = [self.record(item, task) for item in value]
            return shown
        if isinstance(value, dict):
            return {key: self.record(item, task) for key, item in value.items()}  # type: ignore[return-value]
        return value

    def restore(self, args: Any, real: Any, task: str | None = None) -> Any:
        """Return arguments that somebody has edited as they were shown: with the real values where
        nothing was changed."""
        if self._field("args", real, task) == args:
            return real
        return self._restore(args, real)

    def hides(self, path: Sequence[str], value: Any, tasks: Sequence[str | None] = (None,)) -> bool:
        """Whether people are not shown the value of an argument at a path, in a job of any of
        the tasks. Who may filter by what is hidden can guess it.

        >>> hide = Redaction(("password",))
        >>> hide.hides(["smtp", "password"], "x"), hide.hides(["smtp", "host"], "x")
        (True, False)
        """
        if any(self._is_secret(name) for name in path):
            return True
        for task in tasks:
            shown = value
            for name in reversed(path):
                shown = {name: shown}
            shown = self._field("args", shown, task)
            for name in path:
                shown = shown.get(name, REDACTED) if isinstance(shown, dict) else REDACTED
            if shown != value:
                return True
        return False

    def data(self, value: Any) -> Any:
        """Return JSON data without what has one of the names."""
        try:
            return self._data(value)
        except RecursionError:
            return REDACTED

    def text(self, text: str) -> str:
        """Return a text without the passwords of URLs, and without `password=…`."""
        text = hide_passwords(text)
        return self._in_text.sub(rf"\1{REDACTED}", text) if self._in_text else text

    def _field(self, name: str, value: Any, task: str | None) -> Any:
        if isinstance(value, msgspec.Struct) or name in _PARTS:
            return self.record(value, task)
        shown = self.text(value) if isinstance(value, str) and name in _TEXTS else self.data(value)
        for hook in self._hooks:
            try:
                shown = hook(name, shown, task)
            except Exception as error:  # noqa: BLE001 - what fails to hide must not show
                return f"{REDACTED}: @app.redact failed with {type(error).__name__}"
        return shown

    def _data(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                key: item if key == "by" else REDACTED if self._is_secret(key) else self._data(item)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return type(value)(self._data(item) for item in value)
        return value

    def _restore(self, shown: Any, real: Any) -> Any:
        if shown == REDACTED or (isinstance(real, str) and self.text(real) == shown):
            return real
        if isinstance(shown, dict) and isinstance(real, dict):
            return {
                key: self._restore(item, real[key]) if key in real else item
                for key, item in shown.items()
            }
        if isinstance(shown, list) and isinstance(real, list) and len(shown) == len(real):
            return [self._restore(*pair) for pair in zip(shown, real, strict=True)]
        return shown

    def _is_secret(self, name: Any) -> bool:
        if not isinstance(name, str):
            return False
        known = self._known.get(name)
        if known is None:
            words = _words(name)
            known = any(_contains(words, secret) for secret in self._names)
            if len(self._known) < 10_000:
                self._known[name] = known
        return known


def _words(name: str) -> list[str]:
    """`smtpPassword`, `smtp_password` and `SMTP-Password` are the same two words."""
    return [word.lower() for word in _WORDS.findall(name[:200])]


def _contains(words: Sequence[str], sought: Sequence[str]) -> bool:
    count = len(sought)
    joined = "".join(sought)
    return joined in words or any(
        words[place : place + count] == list(sought) for place in range(len(words) - count + 1)
    )
