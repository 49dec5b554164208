"""How long things took, as counts of buckets that are a quarter of a doubling wide.

Buckets of different workers and times can be added, and any percentile of the sum is right within
9 %.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import ceil, sqrt

_FIRST_US = 100
_BUCKETS = 132
BOUNDS_US = tuple(round(_FIRST_US * 2 ** (bucket / 4)) for bucket in range(_BUCKETS))
"""The upper bounds of the buckets, from 0.1 ms to 8 days, in microseconds."""


def bucket_of(microseconds: int) -> int:
    """Return the bucket of a duration. Longer ones than the last bound are in the last bucket.

    >>> bucket_of(0), bucket_of(100), bucket_of(101), bucket_of(10**15)
    (0, 0, 1, 131)
    """
    return min(bisect_left(BOUNDS_US, microseconds), _BUCKETS - 1)


def seconds_of(bucket: int) -> float:
    """Return the middle of a bucket; of the first its upper bound.

    >>> seconds_of(0), round(seconds_of(bucket_of(1_000_000)), 2)
    (0.0001, 1.06)
    """
    if bucket == 0:
        return _FIRST_US / 1e6
    return round(sqrt(BOUNDS_US[bucket - 1] * BOUNDS_US[bucket]) / 1e6, 6)


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """Return the duration, in seconds, that this share does not exceed. None: there are none.

    >>> percentile({bucket_of(1000): 98, bucket_of(60_000_000): 2}, 0.5)
    0.001037
    >>> percentile({bucket_of(1000): 98, bucket_of(60_000_000): 2}, 0.99)
    57.174012
    """
    rank = ceil(share * sum(buckets.values()))
    for bucket in sorted(buckets):
        rank -= buckets[bucket]
        if rank <= 0 and buckets[bucket]:
            return seconds_of(bucket)
    return None
