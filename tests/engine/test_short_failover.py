"""The campaign of `make cluster`, small enough for every run."""

from __future__ import annotations

import pytest

from tests.chaos.cluster_campaigns import run_campaign
from tests.cluster import Cluster
from tests.postgres_binaries import find_system


@pytest.mark.timeout(300)
async def test_two_failovers_lose_and_double_nothing_that_was_acknowledged() -> None:
    with Cluster(find_system()) as cluster:
        outcome = await run_campaign(cluster, kills=2, workers=2)

    assert [failover.how for failover in outcome.failovers] == ["server", "machine"]
    assert outcome.counts["jobs_lost"] == 0
    for what in ("jobs", "ticks", "reminders", "flows"):
        assert outcome.counts[what] > 0
