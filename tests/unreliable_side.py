"""A system for the comparison in `bench.peers` that is wrong on purpose.

`python -m tests.unreliable_side doubles|loses ROLE`: job 3 runs twice, or not at all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.peers.sides import side
from bench.peers.sides.raw_sqlite import RawSqlite

PLANTED = 3


class Unreliable(RawSqlite):
    def __init__(self, fault: str) -> None:
        self.times = {"doubles": 2, "loses": 0}[fault]

    async def bulk(self, jobs: Sequence[side.Job]) -> None:
        await super().bulk(
            [job for job in jobs for _ in range(self.times if job[0] == PLANTED else 1)]
        )


if __name__ == "__main__":
    side.run(Unreliable(sys.argv.pop(1)))
