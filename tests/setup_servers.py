"""Makes sure that the tests find PostgreSQL, and says which: python -m tests.setup_servers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.postgres_binaries import DEBIAN, find_system, find_wheel

CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.conf")


def main() -> None:
    if not any(DEBIAN.glob("*/bin/initdb")) and not shutil.which("initdb"):
        install_debian()
    for binaries in (find_system(), find_wheel()):
        print(f"PostgreSQL {binaries.major}: {binaries.directory}")


def install_debian() -> None:
    """Install Debian's PostgreSQL if we may; without it the wheel's older version stands in."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print("No PostgreSQL is installed; the tests use the wheel's (sudo apt-get install it?).")
        return
    print("Installing Debian's PostgreSQL …", flush=True)
    # The package would otherwise create and start a cluster of its own on port 5432.
    if not CLUSTER_SETTINGS.exists():
        CLUSTER_SETTINGS.parent.mkdir(parents=True, exist_ok=True)
        CLUSTER_SETTINGS.write_text("create_main_cluster = false\n")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", "postgresql"]):
        done = subprocess.run(
            ["apt-get", "-qq", "-o", "Dpkg::Options::=--force-confold", *command],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            print("apt-get could not install it; the tests use the wheel's.")
            return


if __name__ == "__main__":
    main()
