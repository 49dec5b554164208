"""Named SQL statements, read from the `.sql` files beside a backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_HEADING = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_statements(package: str, rename: Callable[[str], str]) -> dict[str, str]:
    """Return every statement under `package`'s `sql/` folder by the name in its heading."""
    return {name: rename(text) for name, text in _read(package).items()}


@cache
def _read(package: str) -> dict[str, str]:
    statements: dict[str, str] = {}
    for file in _sql_files(files(package).joinpath("sql")):
        parts = _HEADING.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in statements:
                raise AssertionError(f"two statements are named {name}")
            statements[name] = _strip_comments(text).strip().rstrip(";")
    return statements


def _sql_files(folder: Traversable) -> Iterator[Traversable]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _sql_files(entry)
        elif entry.name.endswith(".sql"):
            yield entry


def _strip_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
