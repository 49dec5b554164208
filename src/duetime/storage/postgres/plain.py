"""Jobs without keys as the parameters of one statement: `enqueue_alike` and `enqueue_unlike`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, iter_unpack, pack
from typing import Any

import msgspec

from duetime.domain.checks import check_name, check_priority, check_queue
from duetime.domain.jobs.job import NewJob
from duetime.domain.jobs.retry import check_max_attempts
from duetime.errors import InvalidInput
from duetime.storage.postgres.bulk import pack_interval, pack_moment, pack_small

_MOST_KNOWN = 1000
_pack_size = Struct("!i").pack
_array_head = Struct("!iiIii").pack
_HEAD = 20
_NULL = b"\xff\xff\xff\xff"


def _text(value: str) -> bytes:
    return value.encode()


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _true(value: bool) -> bytes | None:
    return b"\1" if value else None


_COLUMNS: dict[str, tuple[int, Callable[[Any], bytes | None]]] = {
    "task": (25, _text),
    "queue": (25, _text),
    "priority": (21, pack_small),
    "run_at": (1184, pack_moment),
    "delay": (1186, pack_interval),
    "partition": (25, _text),
    "max_attempts": (21, pack_small),
    "timeout": (1186, pack_interval),
    "expires_at": (1184, pack_moment),
    "expires_after": (1186, pack_interval),
    "trace": (114, _json),
    "flow": (16, _true),
}
"""What jobs of a kind have in common: the type's number in PostgreSQL, and its binary form."""
_JSON, _BIGINT = 114, 20

Values = dict[str, bytes | None]


class PlainJobs:
    """Writes jobs as parameters. Most jobs of a process are of a few kinds: it remembers those."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Values] = {}

    def parameters(self, jobs: Sequence[NewJob], *, notify: bool) -> tuple[str, Values]:
        """Return the name of a statement, and its parameters in their binary form."""
        kinds: dict[tuple[object, ...], int] = {}
        values: list[Values] = []
        numbers: list[int] = []
        last: tuple[object, ...] = ()
        number = 0
        args: list[bytes] = []
        for job in jobs:
            alike = (
                job.task, job.queue, job.priority, job.run_at, job.delay, job.partition,
                job.max_attempts, job.timeout, job.expires_at, job.expires_after,
                None if job.trace is None else tuple(job.trace.items()), job.flow,
            )  # fmt: skip
            if alike != last:
                last = alike
                number = kinds.setdefault(alike, len(kinds) + 1)
                if number > len(values):
                    values.append(self._values(alike, job))
            numbers.append(number)
            raw = bytes(job.args)
            if not raw.startswith(b"{"):
                raise InvalidInput(f"The args of task {job.task!r} must be a JSON object.")
            args.append(raw)
        shared = {"args": _array(_JSON, args), "notify": b"\1" if notify else b"\0"}
        if len(values) == 1:
            return "enqueue_alike", values[0] | shared
        columns: Values = {
            name: _array(number, [one[name] for one in values])
            for name, (number, _) in _COLUMNS.items()
        }
        places = _array(_BIGINT, [pack("!q", number) for number in numbers])
        return "enqueue_unlike", columns | shared | {"kind": places}

    def _values(self, alike: tuple[object, ...], job: NewJob) -> Values:
        known = self._known.get(alike)
        if known is None:
            check_name(job.task, what="task")
            check_queue(job.queue)
            check_priority(job.priority)
            check_max_attempts(job.max_attempts)
            known = {
                name: None if (value := getattr(job, name)) is None else write(value)
                for name, (_, write) in _COLUMNS.items()
            }
            # Times and traces do not come again.
            if job.run_at is None and job.expires_at is None and job.trace is None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[alike] = known
        return known


def read_ids(array: bytes) -> list[int]:
    """Return the numbers of a binary array of bigint."""
    return [job_id for _, job_id in iter_unpack("!iq", array[_HEAD:])]


def _array(kind: int, values: Sequence[bytes | None]) -> bytes:
    parts = [_array_head(1, None in values, kind, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts.append(_pack_size(len(value)))
            parts.append(value)
    return b"".join(parts)
