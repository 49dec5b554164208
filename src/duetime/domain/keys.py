"""Keys of runs, jobs, reminders and digests.

Those that are passed to providers let them drop a second copy of the same message or call. They
are short, plain ASCII, the same in every attempt, and unlike those of every other installation:
staging never uses a key of production. They name nobody.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta

from duetime.domain.checks import RUN_KEYS
from duetime.domain.duration import format_time

REMINDER_PREFIX = "dtr_"
DIGEST_PREFIX = "dtd_"
_JOB_PREFIX = "dtj_"
_FIRST_TIME = datetime(1900, 1, 1, tzinfo=UTC)
"""No time that is stored is earlier."""
_REMINDER = re.compile(r"(dtr_[0-9a-f]{32})(?:_([1-9][0-9]{0,8}))?", re.ASCII)
_DIGEST = re.compile(r"dtd_[0-9a-f]{16}_([1-9][0-9]{0,17})", re.ASCII)


def run_key(name: str, tick: datetime) -> str:
    """The stable key of a run, the same for all workers."""
    moment = tick.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return f"{RUN_KEYS}{name}@{moment}"


def read_run_key(key: str | None) -> tuple[str, datetime] | None:
    """The schedule and the tick of a run's key; None: it is no run.

    >>> read_run_key("tick:nightly@2026-11-16T03:00:00Z")
    ('nightly', datetime.datetime(2026, 11, 16, 3, 0, tzinfo=datetime.timezone.utc))
    """
    if key is None or not key.startswith(RUN_KEYS):
        return None
    name, _, tick = key.removeprefix(RUN_KEYS).rpartition("@")
    try:
        return name, datetime.fromisoformat(tick)
    except ValueError:
        return None


def make_job_key(installation: str, task: str, job_id: int, key: str | None) -> str:
    """Return the key that a job hands to providers.

    It depends on the job's own key, if it has one: jobs of one task with the same key do the same.

    >>> make_job_key("9f1c2d3e4b5a4c6d", "shop.pay", 7, None)
    'dtj_9f1c2d3e4b5a4c6d_7'
    """
    if key is None:
        return f"{_JOB_PREFIX}{installation}_{job_id}"
    if key.startswith((REMINDER_PREFIX, DIGEST_PREFIX)) and task.startswith("duetime."):
        return key
    return _JOB_PREFIX + hash_key(f"{installation}|{task}|{key}")


def shorten_installation(installation: str) -> str:
    """Return the part of an installation's id that its keys carry.

    >>> shorten_installation("9f1c2d3e-4b5a-4c6d-8e7f-001122334455")
    '9f1c2d3e4b5a4c6d'
    """
    return installation.replace("-", "")[:16]


def make_reminder_key(
    installation: str, subject: str, due_at: datetime, rule_id: str, time: datetime, recipient: str
) -> str:
    """Return the key of a reminder, in its first round. `duetime._reminder_key` does it in SQL.

    A reminder that is withdrawn and armed again has the same one. It begins with its time, in
    seconds since 1900: keys of reminders that are sent one after another are beside each other in
    an index.

    >>> due = datetime.fromisoformat("2026-03-06T18:00Z")
    >>> make_reminder_key("9f1c2d3e4b5a4c6d", "game:42", due, "-1h", due, "Jürgen")
    'dtr_00ed5594a0f5e71003bad16311c3019e'
    """
    parts = (installation, subject, format_time(due_at), rule_id, format_time(time), recipient)
    seconds = (time - _FIRST_TIME) // timedelta(seconds=1)
    return f"{REMINDER_PREFIX}{seconds:010x}{hash_key('|'.join(parts))[:22]}"


def key_of_round(first: str, number: int) -> str:
    """Return the key of a later round of a reminder: snoozed or sent again, it is another message.

    >>> key_of_round("dtr_00", 0), key_of_round("dtr_00", 2)
    ('dtr_00', 'dtr_00_2')
    """
    return f"{first}_{number}" if number else first


def read_reminder_key(key: str) -> tuple[str, int] | None:
    """Return the key of the first round, and the number of the round; None if it is no such key.

    >>> read_reminder_key("dtr_" + 32 * "0" + "_2")
    ('dtr_00000000000000000000000000000000', 2)
    """
    found = _REMINDER.fullmatch(key)
    return None if found is None else (found[1], int(found[2] or 0))


def make_digest_key(installation: str, digest_id: int) -> str:
    """Return the key of a digest. The statement `digest_add` does the same in SQL.

    >>> make_digest_key("9f1c2d3e4b5a4c6d", 7)
    'dtd_9f1c2d3e4b5a4c6d_7'
    """
    return f"{DIGEST_PREFIX}{installation}_{digest_id}"


def read_digest_key(key: str) -> int | None:
    """Return the id of the digest that a key may be of.

    >>> read_digest_key("dtd_9f1c2d3e4b5a4c6d_7"), read_digest_key("dtd_7")
    (7, None)
    """
    found = _DIGEST.fullmatch(key)
    return None if found is None else int(found[1])


def hash_key(text: str) -> str:
    """Return the part of a key that stands for a text of any length."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
