"""Makes sure that the tests find PostgreSQL, and says which: python -m tests.setup_servers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.pgbouncer import find_pgbouncer
from tests.postgres_binaries import DEBIAN, find_system, find_wheel

CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.conf")


def main() -> None:
    if not any(DEBIAN.glob("*/bin/initdb")) and not shutil.which("initdb"):
        install_debian("postgresql")
    if find_pgbouncer() is None:
        install_debian("pgbouncer")
    for binaries in (find_system(), find_wheel()):
        print(f"PostgreSQL {binaries.major}: {binaries.directory}")


def install_debian(package: str) -> None:
    """Install Debian's package if we may. Without PostgreSQL the wheel's older version stands in;
    without pgbouncer its tests are skipped."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(f"{package} is not installed, and only root may (sudo apt-get install {package}).")
        return
    print(f"Installing Debian's {package} …", flush=True)
    # The package would otherwise create and start a cluster of its own on port 5432.
    if not CLUSTER_SETTINGS.exists():
        CLUSTER_SETTINGS.parent.mkdir(parents=True, exist_ok=True)
        CLUSTER_SETTINGS.write_text("create_main_cluster = false\n")
    # RUNLEVEL=1 keeps the package from starting its service.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
        done = subprocess.run(
            ["apt-get", "-qq", "-o", "Dpkg::Options::=--force-confold", *command],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            print(f"apt-get could not install {package}; the tests do without.")
            return


if __name__ == "__main__":
    main()
