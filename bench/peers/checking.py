"""Every job runs exactly once: what a system lost or doubled is no figure, but a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bench.reading import Wrong

_SHOWN = 5


def check_exactly_once(enqueued: Iterable[int], executed: Iterable[int]) -> int:
    """Return how many jobs ran; raise `Wrong` if one did not, ran twice or was never enqueued."""
    wanted = set(enqueued)
    runs = Counter(executed)
    wrong = {
        "lost": sorted(wanted - runs.keys()),
        "doubled": sorted(number for number, times in runs.items() if times > 1),
        "unknown": sorted(runs.keys() - wanted),
    }
    if any(wrong.values()):
        raise Wrong(
            "; ".join(f"{_say(numbers)} {what}" for what, numbers in wrong.items() if numbers)
        )
    return len(wanted)


def _say(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
    return f"{len(numbers)} jobs ({shown})" if len(numbers) > 1 else f"job {shown}"
