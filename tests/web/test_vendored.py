"""The files of others are unchanged, and have their licences beside them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import duetime.web.dashboard

VENDORED = Path(duetime.web.dashboard.__file__).parent / "static" / "vendored"
_ROW = re.compile(r"^\| `([^`]+)` \|.*\(`([^`]+)`\) \| `([0-9a-f]{64})` \|$", re.MULTILINE)


def test_every_vendored_file_has_its_hash_and_its_licence() -> None:
    rows = {name: (licence, sha) for name, licence, sha in _ROW.findall(read("README.md"))}

    files = {path.name for path in VENDORED.iterdir() if path.suffix in (".js", ".css")}
    assert set(rows) == files
    for name, (licence, sha) in rows.items():
        assert hashlib.sha256((VENDORED / name).read_bytes()).hexdigest() == sha
        assert len(read(licence)) > 100


def read(name: str) -> str:
    return (VENDORED / name).read_text()
