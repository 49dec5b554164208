"""Makes sure that the tests find their servers, and says which: python -m tests.setup_servers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chromium import find_chromium
from tests.cluster import find_etcd, find_patroni
from tests.pgbouncer import find_pgbouncer
from tests.postgres_binaries import DEBIAN, find_system, find_wheel
from tests.rabbitmq import find_rabbitmq

CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.conf")
SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")


def main() -> None:
    if not any(DEBIAN.glob("*/bin/initdb")) and not shutil.which("initdb"):
        install_debian("postgresql")
    if find_pgbouncer() is None:
        install_debian("pgbouncer")
    if find_rabbitmq() is None and install_debian("rabbitmq-server"):
        # The tests start their own; the package's service shall not come with the next boot either.
        subprocess.run(["update-rc.d", "rabbitmq-server", "disable"], capture_output=True)
    if find_chromium() is None:
        install_debian("chromium", "fonts-dejavu-core")
    if None in (find_patroni(), find_etcd()) and install_debian("patroni", "etcd-server"):
        for service in ("patroni", "etcd"):
            subprocess.run(["update-rc.d", service, "disable"], capture_output=True)
    for binaries in (find_system(), find_wheel()):
        print(f"PostgreSQL {binaries.major}: {binaries.directory}")
    print(f"RabbitMQ: {find_rabbitmq() or 'not there; its tests are skipped'}")
    for program, found in (("Patroni", find_patroni()), ("etcd", find_etcd())):
        print(f"{program}: {found or 'not there; the test of failovers fails without it'}")
    print(f"Chromium: {find_chromium() or 'not there; its tests are skipped'}")


def install_debian(package: str, *also: str) -> bool:
    """Install Debian's package if we may. Without PostgreSQL the wheel's older version stands in;
    without pgbouncer, RabbitMQ or Chromium their tests are skipped, without Patroni or etcd that of
    failovers fails."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(f"{package} is not installed, and only root may (sudo apt-get install {package}).")
        return False
    print(f"Installing Debian's {package} …", flush=True)
    # The package would otherwise create and start a cluster of its own on port 5432.
    if not CLUSTER_SETTINGS.exists():
        CLUSTER_SETTINGS.parent.mkdir(parents=True, exist_ok=True)
        CLUSTER_SETTINGS.write_text("create_main_cluster = false\n")
    # RUNLEVEL=1 keeps the package from starting its service; where systemd runs, the policy does.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    with no_services_started():
        for command in (["update"], ["install", "-y", "--no-install-recommends", package, *also]):
            done = subprocess.run(
                ["apt-get", "-qq", "-o", "Dpkg::Options::=--force-confold", *command],
                env=environment,
                stdout=subprocess.DEVNULL,
            )
            if done.returncode != 0:
                print(f"apt-get could not install {package}; the tests do without.")
                return False
    return True


@contextmanager
def no_services_started() -> Iterator[None]:
    """Debian's way to say that installing shall start nothing. A policy that is there stays."""
    if SERVICE_POLICY.exists():
        yield
        return
    SERVICE_POLICY.write_text("#!/bin/sh\nexit 101\n")
    SERVICE_POLICY.chmod(0o755)
    try:
        yield
    finally:
        SERVICE_POLICY.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
