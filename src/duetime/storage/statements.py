"""Named SQL statements, read from the `.sql` files beside a backend."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files

_HEADING = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_statements(package: str, rename: Callable[[str], str]) -> dict[str, str]:
    """Return every statement under `package`'s `sql/` folder by the name in its heading."""
    return {name: rename(text) for name, text in _read(package).items()}


@cache
def _read(package: str) -> dict[str, str]:
    statements: dict[str, str] = {}
    for file in sorted(files(package).joinpath("sql").iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _HEADING.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in statements:
                raise AssertionError(f"two statements are named {name}")
            statements[name] = _strip_comments(text).strip().rstrip(";")
    return statements


def _strip_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
