"""Every error that Duetime raises. One root; each message says what happened and what to do."""

from __future__ import annotations

import re
from typing import Any, ClassVar

_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class DuetimeError(Exception):
    """The root of all errors raised by Duetime."""

    code: ClassVar[str] = "error"
    """The class's name for machines: `JobNotFound` is `job_not_found`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "code" not in cls.__dict__:
            cls.code = _WORDS.sub("_", cls.__name__).lower()


class InvalidInput(DuetimeError, ValueError):
    """What was given cannot be accepted; nothing was changed."""


class InvalidArguments(InvalidInput):
    """A task's arguments do not fit its signature, are not JSON, or are too large."""

    def __init__(self, message: str, *, task: str, argument: str | None = None) -> None:
        super().__init__(message)
        self.task = task
        self.argument = argument


class InvalidSchedule(InvalidInput):
    """A schedule's times cannot be read, never come, or name an unknown time zone."""


class MissingPackage(InvalidSchedule):
    """The schedule needs an optional package that is not installed in this process."""


class UnknownTask(DuetimeError, LookupError):
    """No task of that name is registered in this process."""

    def __init__(self, task: str) -> None:
        super().__init__(
            f"No task named {task!r} is registered here. "
            "Import the module that defines it before the worker starts, or check the spelling."
        )
        self.task = task


class JobNotFound(DuetimeError, LookupError):
    """No job has that id (it may have been pruned)."""

    def __init__(self, job_id: int) -> None:
        super().__init__(f"There is no job {job_id}. It may have been pruned.")
        self.job_id = job_id


class QueueNotFound(DuetimeError, LookupError):
    """No job, worker, pause or limit names that queue."""

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"There is no queue {queue!r:.200}: no job, worker, pause or limit names it."
        )
        self.queue = queue


class ScheduleNotFound(DuetimeError, LookupError):
    """No schedule has that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no schedule named {name!r}. `duetime schedules` lists them.")
        self.name = name


class OlderRelease(DuetimeError):
    """A newer release of the service has declared its schedules; nothing was changed."""

    def __init__(self, service: str, release: str, newest: str) -> None:
        shown = f"Release {release!r}" if release else "A process without a release"
        super().__init__(
            f"{shown} of the service {service!r} is older than {newest!r}, which has declared its "
            "schedules since. Nothing was changed. To go back to older code, deploy it as a newer "
            "release."
        )
        self.service = service
        self.release = release
        self.newest = newest


class PresetNotFound(DuetimeError, LookupError):
    """No preset of a schedule's times has that name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"There is no preset {name!r:.200}. `duetime schedules presets` lists them."
        )
        self.name = name


class ScopeNotFound(DuetimeError, LookupError):
    """No scope has that reference."""

    def __init__(self, ref: str) -> None:
        super().__init__(f"There is no scope {ref!r:.200}. `duetime scopes` lists them.")
        self.ref = ref


class TableNotFound(DuetimeError, LookupError):
    """No table is tracked under that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"No tracked table is named {name!r:.200}. `duetime tables` lists them.")
        self.name = name


class SubjectNotFound(DuetimeError, LookupError):
    """No subject has that reference."""

    def __init__(self, ref: str) -> None:
        super().__init__(f"There is no subject {ref!r}. It may have been deleted.")
        self.ref = ref


class ReminderNotFound(DuetimeError, LookupError):
    """No reminder has that id."""

    def __init__(self, reminder_id: int) -> None:
        super().__init__(
            f"There is no reminder {reminder_id}: it was pruned, or its subject was deleted."
        )
        self.reminder_id = reminder_id


class DeliveryNotFound(DuetimeError, LookupError):
    """No delivery has that external id; the receipt may have come before the send was recorded."""

    def __init__(self, external_id: str) -> None:
        super().__init__(
            f"No delivery is known as {external_id!r:.200}. If it was sent just now, its record "
            "may not be stored yet: tell it again in a moment."
        )
        self.external_id = external_id


class RecipientNotFound(DuetimeError, LookupError):
    """No recipient of that reference was put."""

    def __init__(self, ref: str) -> None:
        super().__init__(
            f"There is no recipient {ref!r:.200}. It can be reminded anyway: its reference is then "
            "its address."
        )
        self.ref = ref


class KeyConflict(DuetimeError):
    """Another job holds the key, and the policy is `reject`, or the job is to be requeued."""

    def __init__(self, *, task: str, key: str, job_id: int, requeued: int | None = None) -> None:
        super().__init__(
            f"Job {job_id} of task {task!r} already holds the key {key!r}; "
            + (
                'nothing was enqueued. Use on_conflict="return" to get that job, or "replace" '
                "to move it."
                if requeued is None
                else f"job {requeued} was not requeued. Wait until that one has ended and its "
                "key is free, or cancel it."
            )
        )
        self.task = task
        self.key = key
        self.job_id = job_id


class IllegalTransition(DuetimeError):
    """The job is not in a state in which this can be done."""

    def __init__(self, job_id: int, *, state: str, action: str) -> None:
        super().__init__(f"Job {job_id} is {state}: it cannot be {action}.")
        self.job_id = job_id
        self.state = state


class ClaimLost(DuetimeError):
    """This worker no longer holds the job: another may run it. Stop, and write nothing."""

    def __init__(self, job_id: int, token: int) -> None:
        super().__init__(
            f"Job {job_id} is no longer held under token {token}: its lease ran out and it was "
            "given to another worker. Nothing was written."
        )
        self.job_id = job_id
        self.token = token


class JobCancelled(DuetimeError):
    """Raised in a handler that asks whether its job was cancelled, when it was."""

    def __init__(self, job_id: int, reason: str = "cancelled") -> None:
        super().__init__(f"Job {job_id} should stop: {reason}.")
        self.job_id = job_id
        self.reason = reason


class JobFailed(DuetimeError):
    """`result()` was awaited for a job that ended without one."""

    def __init__(
        self, job_id: int, *, state: str, error: str | None, error_code: str | None = None
    ) -> None:
        why = error or "no error was stored"
        super().__init__(
            f"Job {job_id} ended as {state}: " + (f"{error_code}: {why}" if error_code else why)
        )
        self.job_id = job_id
        self.state = state
        self.error = error
        self.error_code = error_code


class InvalidResult(DuetimeError):
    """The job completed, but its result was not stored, or is not what its task's annotation
    says."""

    def __init__(self, message: str, *, job_id: int) -> None:
        super().__init__(message)
        self.job_id = job_id


class ResultTimeout(DuetimeError, TimeoutError):
    """The job did not end in the time given; it goes on."""

    def __init__(self, job_id: int, seconds: float) -> None:
        super().__init__(f"Job {job_id} did not end within {seconds:g} s; it is still there.")
        self.job_id = job_id


class StartupFailed(DuetimeError):
    """An `on_startup` hook failed, and the worker did not start. Its error is the cause."""

    def __init__(self, hook: str, error: BaseException) -> None:
        super().__init__(
            f"The on_startup hook {hook} failed, and the worker did not start: "
            f"{type(error).__name__}: {error}"
        )
        self.hook = hook


class StorageError(DuetimeError):
    """The database refused or failed."""


class TransientError(StorageError):
    """The database failed in a way that may pass: workers try again, and so may you."""


class DataRejected(StorageError):
    """The database does not accept these values: a constraint, a type or a trigger is against
    them. Trying again with the same values is of no use."""


class DatabaseUnreachable(TransientError):
    """No connection could be made, or it broke off. What became of a commit is unknown."""


class TransactionConflict(TransientError):
    """Another transaction was in the way, and the database undid this one. Nothing was changed."""


class DatabaseCorrupted(StorageError):
    """The SQLite file is damaged, or is not a database. Its workers stop."""


class InvalidDatabaseURL(StorageError, ValueError):
    """The database URL cannot be understood."""


class SchemaMismatch(StorageError):
    """The database's schema is not the one that this version of Duetime works with."""

    def __init__(self, message: str, *, found: int, expected: int) -> None:
        super().__init__(message)
        self.found = found
        self.expected = expected


class UnsupportedTransaction(DuetimeError, TypeError):
    """`tx=` was given something that Duetime cannot write through."""


class SettingsError(DuetimeError, ValueError):
    """A setting has a value that cannot be used."""


class EndlessWork(DuetimeError):
    """In a test world, jobs led to more jobs without end."""
