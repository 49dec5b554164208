"""Every error that Duetime raises, under one root. Messages say what happened and what to do."""

from __future__ import annotations

import re
from math import ceil
from typing import Any, ClassVar

_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class DuetimeError(Exception):
    """The root of all errors raised by Duetime."""

    code: ClassVar[str] = "error"
    """A stable code for programs, made from the name: `JobNotFound` is `job_not_found`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "code" not in cls.__dict__:
            cls.code = _WORDS.sub("_", cls.__name__).lower()


class InvalidInput(DuetimeError, ValueError):
    """An argument is not valid. Nothing was changed."""


class InvalidArguments(InvalidInput):
    """The arguments do not match the task's signature, are not JSON, or are too large."""

    def __init__(self, message: str, *, task: str, argument: str | None = None) -> None:
        super().__init__(message)
        self.task = task
        self.argument = argument


class InvalidSchedule(InvalidInput):
    """The timetable cannot be parsed, never fires, or has an unknown time zone."""


class MissingPackage(InvalidSchedule):
    """The schedule needs an optional package that is not installed in this process."""


class UnknownTask(DuetimeError, LookupError):
    """No task with this name is registered in this process."""

    def __init__(self, task: str) -> None:
        super().__init__(
            f"No task named {task!r} is registered here. "
            "Import the module that defines it before the worker starts, or check the spelling."
        )
        self.task = task


class UnknownFlow(DuetimeError, LookupError):
    """No flow with this name is registered in this process."""

    def __init__(self, flow: str) -> None:
        super().__init__(
            f"No flow named {flow!r} is registered here. Import the module that defines it, name "
            "the app with --app, or check the spelling."
        )
        self.flow = flow


class JobNotFound(DuetimeError, LookupError):
    """There is no job with this id, or none of the kind that was asked for. It may have been
    pruned."""

    def __init__(self, job_id: int, message: str | None = None) -> None:
        super().__init__(message or f"There is no job {job_id}. It may have been pruned.")
        self.job_id = job_id


class FlowNotFound(DuetimeError, LookupError):
    """There is no run of a flow with this id. It may have been pruned."""

    def __init__(self, run_id: int) -> None:
        super().__init__(
            f"There is no run {run_id} of a flow. It may have been pruned. `duetime flows list` "
            "lists them."
        )
        self.run_id = run_id


class FlowEnded(DuetimeError):
    """The run has ended, so the change is not possible."""

    def __init__(self, run_id: int, *, state: str, action: str = "takes no signals") -> None:
        super().__init__(f"Run {run_id} has ended ({state}) and {action}.")
        self.run_id = run_id
        self.state = state


class FlowChanged(DuetimeError):
    """The flow's code no longer makes the calls that this run has recorded."""

    def __init__(self, run_id: int, *, seq: int, recorded: str, called: str | None) -> None:
        now = "the flow returned before it" if called is None else f"the code calls {called}"
        super().__init__(
            f"The code of this flow has changed since run {run_id} began: call {seq} is recorded "
            f"as {recorded}, but now {now}. Deploy code that makes the recorded calls, or guard "
            'the change with `if await flow.version("…")`; then retry the run.'
        )
        self.run_id = run_id
        self.seq = seq
        self.recorded = recorded
        self.called = called


class StepFailed(DuetimeError):
    """A step of a flow failed, and its attempts are used up. `error` says why."""

    def __init__(
        self, step: str, *, seq: int, error: str | None, error_code: str | None = None
    ) -> None:
        super().__init__(f"Step {step!r} failed: {error or error_code}")
        self.step = step
        self.seq = seq
        self.error = error
        self.error_code = error_code


class SignalTimeout(DuetimeError):
    """The signal did not arrive in time."""

    def __init__(self, name: str, *, seq: int | None = None) -> None:
        super().__init__(
            f"The signal {name!r} did not arrive in time. Give wait_for a default= to go on "
            "without it."
        )
        self.name = name
        self.seq = seq


class FlowTimeout(DuetimeError):
    """The run took longer than the flow's `timeout`."""

    def __init__(self, run_id: int, seconds: float) -> None:
        super().__init__(f"Run {run_id} did not finish within its timeout of {seconds:g} s.")
        self.run_id = run_id
        self.seconds = seconds


class QueueNotFound(DuetimeError, LookupError):
    """No job, worker, pause or limit names that queue."""

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"There is no queue {queue!r:.200}: no job, worker, pause or limit names it."
        )
        self.queue = queue


class ScheduleNotFound(DuetimeError, LookupError):
    """There is no schedule with this name."""

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
    """There is no subject with this reference."""

    def __init__(self, ref: str) -> None:
        super().__init__(f"There is no subject {ref!r}. It may have been deleted.")
        self.ref = ref


class ReminderNotFound(DuetimeError, LookupError):
    """There is no reminder with this id."""

    def __init__(self, reminder_id: int) -> None:
        super().__init__(
            f"There is no reminder {reminder_id}. It may have been pruned, or its subject deleted."
        )
        self.reminder_id = reminder_id


class DeliveryNotFound(DuetimeError, LookupError):
    """No delivery has this external id, and no message this key. The receipt may have arrived
    before the send."""

    external_id: str | None = None
    key: str | None = None

    def __init__(
        self, external_id: str | None, *, key: str | None = None, why: str | None = None
    ) -> None:
        message = (
            f"No delivery has the external id {external_id!r:.200}. If the message was sent just "
            "now, the send may not be recorded yet: try again in a moment."
        )
        if key is not None:
            other = f", and no delivery the external id {external_id!r:.200}" if external_id else ""
            message = (
                f"No message has the key {key!r:.200}{other}. Give the key that was passed to the "
                "provider: reminder.key, digest.key or message.key."
            )
        super().__init__(why or message)
        self.external_id = external_id
        self.key = key


class RecipientNotFound(DuetimeError, LookupError):
    """There is no stored recipient with this reference."""

    def __init__(self, ref: str) -> None:
        super().__init__(
            f"There is no stored recipient {ref!r:.200}. It can still be reminded: the reference "
            "is then the address."
        )
        self.ref = ref


class TokenNotFound(DuetimeError, LookupError):
    """There is no API token with this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no API token named {name!r:.200}. `duetime tokens` lists them.")
        self.name = name


class AccountNotFound(DuetimeError, LookupError):
    """There is no account with this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no account named {name!r:.200}. `duetime accounts` lists them.")
        self.name = name


class LastAdmin(DuetimeError):
    """Without this account no admin could log in. Nothing was changed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r:.200} is the only admin who can log in. Make another account an admin first, "
            "or use force=True (on the command line --force)."
        )
        self.name = name


class LoginFailed(DuetimeError):
    """The name or the password is wrong, or the account is disabled."""

    def __init__(self) -> None:
        super().__init__("The name or the password is wrong.")


class TooManyLogins(DuetimeError):
    """Too many logins have failed; the password was not checked. Try again after `retry_in`."""

    def __init__(self, retry_in: float) -> None:
        self.retry_in = max(1, ceil(retry_in))
        """Seconds."""
        super().__init__(f"Too many logins have failed. Try again in {self.retry_in} s.")


class NameTaken(DuetimeError):
    """Another API token or account has the name. Nothing was changed."""

    def __init__(self, what: str, name: str, *, hint: str) -> None:
        super().__init__(
            f"There is already an {what} named {name!r:.200}. {hint}, or choose another name."
        )
        self.name = name


class IdempotencyKeyReused(DuetimeError):
    """The idempotency key was used for another request. Nothing was changed."""

    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key was used for a request with another body or query. Nothing was "
            "changed. Use a new key for each new request."
        )


class RequestInProgress(DuetimeError):
    """A request with the same idempotency key is being carried out."""

    def __init__(self, retry_in: float) -> None:
        self.retry_in = max(1, ceil(retry_in))
        """Seconds after which it has ended, even if its process died."""
        super().__init__(
            "A request with this Idempotency-Key is in progress. Send yours again later, to get "
            "its answer."
        )


class AnswerNotKept(DuetimeError):
    """The request was carried out before, and its answer was secret or too large to be kept."""

    def __init__(self, status: int) -> None:
        super().__init__(
            "A request with this Idempotency-Key was carried out before, with the status "
            f"{status}, and its answer was not kept. Nothing was changed now."
        )
        self.status = status


class KeyConflict(DuetimeError):
    """Another job holds the key, and `on_conflict` is `reject`, or the job is being requeued."""

    def __init__(self, *, task: str, key: str, job_id: int, requeued: int | None = None) -> None:
        super().__init__(
            f"Job {job_id} of task {task!r} already holds the key {key!r}; "
            + (
                'nothing was enqueued. Use on_conflict="return" to get that job, or "replace" '
                "to replace it."
                if requeued is None
                else f"job {requeued} was not requeued. Wait until that one has finished and "
                "its key is free, or cancel it."
            )
        )
        self.task = task
        self.key = key
        self.job_id = job_id


class IllegalTransition(DuetimeError):
    """The state of the job does not allow this operation."""

    def __init__(self, job_id: int, *, state: str, action: str) -> None:
        super().__init__(f"Job {job_id} is {state} and cannot be {action}.")
        self.job_id = job_id
        self.state = state


class ClaimLost(DuetimeError):
    """This worker no longer holds the job; another may run it. Stop, and write nothing."""

    def __init__(self, job_id: int, token: int) -> None:
        super().__init__(
            f"This worker no longer holds job {job_id} (token {token}): its lease expired, and "
            "another worker may run the job. Nothing was written."
        )
        self.job_id = job_id
        self.token = token


class JobCancelled(DuetimeError):
    """Raised by `ctx.check()` in a handler whose job should stop."""

    def __init__(self, job_id: int, reason: str = "cancelled") -> None:
        super().__init__(f"Job {job_id} should stop: {reason}.")
        self.job_id = job_id
        self.reason = reason


class JobFailed(DuetimeError):
    """The job finished without a result."""

    def __init__(
        self, job_id: int, *, state: str, error: str | None, error_code: str | None = None
    ) -> None:
        why = error or "no error was stored"
        super().__init__(
            f"Job {job_id} finished as {state}: " + (f"{error_code}: {why}" if error_code else why)
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
    """The job did not finish within the timeout. It is not cancelled."""

    def __init__(self, job_id: int, seconds: float) -> None:
        super().__init__(f"Job {job_id} did not finish within {seconds:g} s. It is not cancelled.")
        self.job_id = job_id


class StartupFailed(DuetimeError):
    """An `on_startup` hook failed, and the worker did not start. Its error is the cause."""

    def __init__(self, hook: str, error: BaseException) -> None:
        super().__init__(
            f"The on_startup hook {hook} failed, and the worker did not start: "
            f"{type(error).__name__}: {error}"
        )
        self.hook = hook


class ServiceError(DuetimeError):
    """The service refused a request of the client, or failed. `code` and `status` say why."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code  # type: ignore[misc]


class ServiceUnreachable(DuetimeError):
    """The service did not answer the client. Whether a change was made is unknown."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(
            f"The service at {host} did not answer: {reason}. Check that it runs and that the URL "
            "is right."
        )
        self.host = host
        self.reason = reason


class StorageError(DuetimeError):
    """The database rejected a statement, or failed."""


class TransientError(StorageError):
    """A temporary failure of the database. Workers try again, and so can you."""


class DataRejected(StorageError):
    """A constraint, a type or a trigger of the database rejected the values. Trying again with
    the same values does not help."""


class DatabaseUnreachable(TransientError):
    """The connection failed or was lost. Whether a commit succeeded is unknown."""


class TransactionConflict(TransientError):
    """The transaction conflicted with another one and was rolled back. Nothing was changed."""


class DatabaseCorrupted(StorageError):
    """The SQLite file is corrupted, or is not a database. Its workers stop."""


class InvalidDatabaseURL(StorageError, ValueError):
    """The database URL, schema or prefix is not valid, or the driver is missing."""


class SchemaMismatch(StorageError):
    """The tables are missing, or their version is not the one that this Duetime needs."""

    def __init__(self, message: str, *, found: int, expected: int) -> None:
        super().__init__(message)
        self.found = found
        self.expected = expected


class UnsupportedTransaction(DuetimeError, TypeError):
    """The value of `tx=` is not a supported connection or session."""


class SettingsError(DuetimeError, ValueError):
    """A setting is unknown, or its value is not valid."""


class EndlessWork(DuetimeError):
    """In a test world, jobs kept creating more jobs without end."""
