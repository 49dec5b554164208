"""Durable reminders, schedules, jobs and flows for Python, on the database you already have.

Everything public is imported from here, on first use: `import duetime` must be quick, since pytest
loads our plugin in every run. `duetime.errors` has the errors alone, `duetime.testing`
the testing kit, and `duetime.integrations` what other frameworks need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# fmt: off
# isort: off
# A public name stands in three places: here for type checkers, in `__all__`, and in `_HOMES`.
if TYPE_CHECKING:
    from duetime.api.accounts import AccountHandle, Accounts
    from duetime.api.audit import Audit
    from duetime.api.flows import BoundFlow, FlowRegistrar, FlowRegistry, FlowRun, FlowTask, Flows
    from duetime.api.graphs import FunctionStep, Graph, GraphRegistry, GraphStep, StepRegistrar
    from duetime.api.job_filters import JobFilters
    from duetime.api.jobs import JobHandle, Jobs
    from duetime.api.listening import Listening, WakeUp
    from duetime.api.presets import Presets
    from duetime.api.queues import QueueHandle, Queues
    from duetime.api.recipients import RecipientHandle, Recipients
    from duetime.api.reminders import ReminderHandle, Reminders
    from duetime.api.schedules import ScheduleArguments, ScheduleHandle, ScheduleInfo, Schedules
    from duetime.api.scopes import ScopeHandle, Scopes
    from duetime.api.sessions import Sessions
    from duetime.api.stats import Stats
    from duetime.api.subjects import SubjectHandle, Subjects
    from duetime.api.tables import Progress, TableHandle, Tables
    from duetime.api.task_registry import TaskArguments
    from duetime.api.tasks import AsyncTask, BoundTask, JobOptions, SyncTask, Task
    from duetime.api.tokens import TokenHandle, Tokens
    from duetime.api.worker_thread import WorkerThread
    from duetime.api.workers import Workers
    from duetime.app import Duetime
    from duetime.channels.apprise import Apprise
    from duetime.channels.channel import Channel, Message, NotSent, Sent
    from duetime.channels.console import Console, Log
    from duetime.channels.email import Email, Security
    from duetime.channels.guard import Resolve
    from duetime.channels.rabbitmq import RabbitMQ
    from duetime.channels.webhook import Secrets, Webhook, make_secret
    from duetime.client import Client
    from duetime.domain.access.account import Account, Role, RoleLike
    from duetime.domain.access.session import Session, StartedSession
    from duetime.domain.access.token import ApiToken, CreatedToken, TokenScope, TokenScopeLike
    from duetime.domain.access.visitor import Visitor
    from duetime.domain.alert import AlertEvent
    from duetime.domain.audit import AuditEvent, AuditKind
    from duetime.domain.change import Put
    from duetime.domain.count import Count, Precision
    from duetime.domain.duration import Duration
    from duetime.domain.findings import Finding, FindingLevel, Thresholds
    from duetime.domain.flows.flow import StepInfo, StepState
    from duetime.domain.flows.graph import Finish
    from duetime.domain.flows.run import FlowInfo, FlowState, FlowStateLike
    from duetime.domain.jobs.bulk import BulkAction, BulkProgress, BulkVerb
    from duetime.domain.jobs.facets import ErrorGroup, JobFacets
    from duetime.domain.jobs.job import (
        AttemptInfo, AttemptOutcome, JobInfo, JobState, JobStateLike, EnqueueAction, NewJob,
        OnConflict, Requeued,
    )
    from duetime.domain.jobs.log_lines import CapturedLog, LogLine
    from duetime.domain.jobs.outcome import Cancel, Completed, Discard, Retry, Skip, Snooze
    from duetime.domain.jobs.queue import Limits, QueueInfo
    from duetime.domain.jobs.retry import Constant, Custom, Delays, Exponential, RetryPolicy
    from duetime.domain.page import Page
    from duetime.domain.reasons import Check, Explanation, Reason
    from duetime.domain.redaction import RedactHook
    from duetime.domain.reminders.delivery import Delivery, DeliveryStatus, ReceiptStatus
    from duetime.domain.reminders.digest import Digest
    from duetime.domain.reminders.explain_scope import ScopeChange
    from duetime.domain.reminders.quiet import Quiet
    from duetime.domain.reminders.recipient import (
        ChannelsLike, Disabled, MutedLike, Recipient, Route,
    )
    from duetime.domain.reminders.recurrence import (
        Occurrence, OccurrenceChange, Recurrence, RepeatsLike,
    )
    from duetime.domain.reminders.reminder import (
        MovePreview, Reminder, ReminderStatus, ReminderStatusLike, ResendStatus, Resent, Subject,
        SubjectStatus,
    )
    from duetime.domain.reminders.rule import Past, Rule, Whose
    from duetime.domain.reminders.rule_text import RuleLike, RulesLike
    from duetime.domain.reminders.tracking import TableArguments, TableKind, Track
    from duetime.domain.schedules.presets import Preset
    from duetime.domain.schedules.preview import PreviewRow
    from duetime.domain.schedules.schedule import (
        CatchUp, Overlap, Policy, PolicyArguments, TickStatus, TickStatusLike,
    )
    from duetime.domain.schedules.timetable import Exclusions, Spec, Timetable
    from duetime.domain.stats.agenda import (
        AgendaItem, AgendaKind, EndedReminder, QuietSpan, RecipientWeek, SpecPreview, SpecTick,
    )
    from duetime.domain.stats.now import NowStats, QueueStats, TaskStats, Totals
    from duetime.domain.stats.problems import Action, ProblemInfo, Severity
    from duetime.domain.stats.search import Match, MatchKind
    from duetime.domain.stats.series import AttemptSample, Series, SeriesPoint
    from duetime.domain.stats.timeline import (
        HeatCell, HeatMap, Timeline, TimelinePart, TimelineRow, TimelineRun,
    )
    from duetime.engine.context import Context
    from duetime.engine.hooks import CallNext, ErrorHook, LifeHook, Middleware
    from duetime.engine.worker import Worker
    from duetime.errors import (
        AccountNotFound, AnswerNotKept, ClaimLost, DataRejected, DatabaseCorrupted,
        DatabaseUnreachable, DeliveryNotFound, DuetimeError, EndlessWork, FlowChanged, FlowEnded,
        FlowNotFound, FlowTimeout, IdempotencyKeyReused, IllegalTransition, InvalidArguments,
        InvalidDatabaseURL, InvalidInput, InvalidResult, InvalidSchedule, JobCancelled, JobFailed,
        JobNotFound, KeyConflict, LastAdmin, LoginFailed, MissingPackage, NameTaken, OlderRelease,
        PresetNotFound, QueueNotFound, RecipientNotFound, ReminderNotFound, RequestInProgress,
        ResultTimeout, ScheduleNotFound, SchemaMismatch, ScopeNotFound, ServiceError,
        ServiceUnreachable, SettingsError, SignalTimeout, StartupFailed, StepFailed, StorageError,
        SubjectNotFound, TableNotFound, TokenNotFound, TooManyLogins, TransactionConflict,
        TransientError, UnknownFlow, UnknownTask, UnsupportedTransaction,
    )
    from duetime.flows.calls import Step, current_step
    from duetime.flows.flow import Flow, Startable, SupportsResult
    from duetime.integrations.ical.exchange import Imported
    from duetime.integrations.ical.reading import Problem
    from duetime.reminders.templates.limits import TemplateError
    from duetime.reminders.templates.template import Template
    from duetime.settings import Retention, Settings, SettingsArguments, WorkerArguments
    from duetime.storage.reminders.rows import ScopeInfo
    from duetime.storage.reminders.tracking import TrackedInfo
    from duetime.storage.schedules.rows import NewSchedule, TickInfo
    from duetime.storage.store import WorkerInfo
    from duetime.telemetry.logs import configure_logging

__version__ = "0.1.0"

__all__ = [
    "Account", "AccountHandle", "AccountNotFound", "Accounts", "Action", "AgendaItem", "AgendaKind",
    "AlertEvent", "AnswerNotKept", "ApiToken", "Apprise", "AsyncTask", "AttemptInfo",
    "AttemptOutcome", "AttemptSample", "Audit", "AuditEvent", "AuditKind", "BoundFlow", "BoundTask",
    "BulkAction", "BulkProgress", "BulkVerb", "CallNext", "Cancel", "CapturedLog", "CatchUp",
    "Channel", "ChannelsLike", "Check", "ClaimLost", "Client", "Completed", "Console", "Constant",
    "Context", "Count", "CreatedToken", "Custom", "DataRejected", "DatabaseCorrupted",
    "DatabaseUnreachable", "Delays", "Delivery", "DeliveryNotFound", "DeliveryStatus", "Digest",
    "Disabled", "Discard", "Duetime", "DuetimeError", "Duration", "Email", "EndedReminder",
    "EndlessWork", "EnqueueAction", "ErrorGroup", "ErrorHook", "Exclusions", "Explanation",
    "Exponential", "Finding", "FindingLevel", "Finish", "Flow", "FlowChanged", "FlowEnded",
    "FlowInfo",
    "FlowNotFound", "FlowRegistrar", "FlowRegistry", "FlowRun", "FlowState", "FlowStateLike",
    "FlowTask", "FlowTimeout", "Flows", "FunctionStep", "Graph", "GraphRegistry", "GraphStep",
    "HeatCell", "HeatMap", "IdempotencyKeyReused", "IllegalTransition", "Imported",
    "InvalidArguments", "InvalidDatabaseURL", "InvalidInput", "InvalidResult", "InvalidSchedule",
    "JobCancelled", "JobFacets", "JobFailed", "JobFilters", "JobHandle", "JobInfo", "JobNotFound",
    "JobOptions", "JobState", "JobStateLike", "Jobs", "KeyConflict", "LastAdmin", "LifeHook",
    "Limits", "Listening", "Log", "LogLine", "LoginFailed", "Match", "MatchKind", "Message",
    "Middleware", "MissingPackage", "MovePreview", "MutedLike", "NameTaken", "NewJob",
    "NewSchedule", "NotSent", "NowStats", "Occurrence", "OccurrenceChange", "OlderRelease",
    "OnConflict", "Overlap", "Page", "Past", "Policy", "PolicyArguments", "Precision", "Preset",
    "PresetNotFound", "Presets", "PreviewRow", "Problem", "ProblemInfo", "Progress", "Put",
    "QueueHandle", "QueueInfo", "QueueNotFound", "QueueStats", "Queues", "Quiet", "QuietSpan",
    "RabbitMQ", "Reason", "ReceiptStatus", "Recipient", "RecipientHandle", "RecipientNotFound",
    "RecipientWeek", "Recipients", "Recurrence", "RedactHook", "Reminder", "ReminderHandle",
    "ReminderNotFound", "ReminderStatus", "ReminderStatusLike", "Reminders", "RepeatsLike",
    "RequestInProgress", "Requeued", "ResendStatus", "Resent", "Resolve", "ResultTimeout",
    "Retention", "Retry", "RetryPolicy", "Role", "RoleLike", "Route", "Rule", "RuleLike",
    "RulesLike", "ScheduleArguments", "ScheduleHandle", "ScheduleInfo", "ScheduleNotFound",
    "Schedules", "SchemaMismatch", "ScopeChange", "ScopeHandle", "ScopeInfo", "ScopeNotFound",
    "Scopes", "Secrets", "Security", "Sent", "Series", "SeriesPoint", "ServiceError",
    "ServiceUnreachable", "Session", "Sessions", "Settings", "SettingsArguments", "SettingsError",
    "Severity", "SignalTimeout", "Skip", "Snooze", "Spec", "SpecPreview", "SpecTick", "Startable",
    "StartedSession", "StartupFailed", "Stats", "Step", "StepFailed", "StepInfo", "StepRegistrar",
    "StepState", "StorageError", "Subject", "SubjectHandle", "SubjectNotFound", "SubjectStatus",
    "Subjects", "SupportsResult", "SyncTask", "TableArguments", "TableHandle", "TableKind",
    "TableNotFound", "Tables", "Task", "TaskArguments", "TaskStats", "Template", "TemplateError",
    "Thresholds", "TickInfo", "TickStatus", "TickStatusLike", "Timeline", "TimelinePart",
    "TimelineRow", "TimelineRun", "Timetable", "TokenHandle", "TokenNotFound", "TokenScope",
    "TokenScopeLike", "Tokens", "TooManyLogins", "Totals", "Track", "TrackedInfo",
    "TransactionConflict", "TransientError", "UnknownFlow", "UnknownTask", "UnsupportedTransaction",
    "Visitor", "WakeUp", "Webhook", "Whose", "Worker", "WorkerArguments", "WorkerInfo",
    "WorkerThread", "Workers", "configure_logging", "current_step", "make_secret",
]

_HOMES = {
    name: module
    for module, names in {
        "duetime.api.accounts": "AccountHandle Accounts",
        "duetime.api.audit": "Audit",
        "duetime.api.flows": "BoundFlow FlowRegistrar FlowRegistry FlowRun FlowTask Flows",
        "duetime.api.graphs": "FunctionStep Graph GraphRegistry GraphStep StepRegistrar",
        "duetime.api.job_filters": "JobFilters",
        "duetime.api.jobs": "JobHandle Jobs",
        "duetime.api.listening": "Listening WakeUp",
        "duetime.api.presets": "Presets",
        "duetime.api.queues": "QueueHandle Queues",
        "duetime.api.recipients": "RecipientHandle Recipients",
        "duetime.api.reminders": "ReminderHandle Reminders",
        "duetime.api.schedules": "ScheduleArguments ScheduleHandle ScheduleInfo Schedules",
        "duetime.api.scopes": "ScopeHandle Scopes",
        "duetime.api.sessions": "Sessions",
        "duetime.api.stats": "Stats",
        "duetime.api.subjects": "SubjectHandle Subjects",
        "duetime.api.tables": "Progress TableHandle Tables",
        "duetime.api.task_registry": "TaskArguments",
        "duetime.api.tasks": "AsyncTask BoundTask JobOptions SyncTask Task",
        "duetime.api.tokens": "TokenHandle Tokens",
        "duetime.api.worker_thread": "WorkerThread",
        "duetime.api.workers": "Workers",
        "duetime.app": "Duetime",
        "duetime.channels.apprise": "Apprise",
        "duetime.channels.channel": "Channel Message NotSent Sent",
        "duetime.channels.console": "Console Log",
        "duetime.channels.email": "Email Security",
        "duetime.channels.guard": "Resolve",
        "duetime.channels.rabbitmq": "RabbitMQ",
        "duetime.channels.webhook": "Secrets Webhook make_secret",
        "duetime.client": "Client",
        "duetime.domain.access.account": "Account Role RoleLike",
        "duetime.domain.access.session": "Session StartedSession",
        "duetime.domain.access.token": "ApiToken CreatedToken TokenScope TokenScopeLike",
        "duetime.domain.access.visitor": "Visitor",
        "duetime.domain.alert": "AlertEvent",
        "duetime.domain.audit": "AuditEvent AuditKind",
        "duetime.domain.change": "Put",
        "duetime.domain.count": "Count Precision",
        "duetime.domain.duration": "Duration",
        "duetime.domain.findings": "Finding FindingLevel Thresholds",
        "duetime.domain.flows.flow": "StepInfo StepState",
        "duetime.domain.flows.graph": "Finish",
        "duetime.domain.flows.run": "FlowInfo FlowState FlowStateLike",
        "duetime.domain.jobs.bulk": "BulkAction BulkProgress BulkVerb",
        "duetime.domain.jobs.facets": "ErrorGroup JobFacets",
        "duetime.domain.jobs.job": (
            "AttemptInfo AttemptOutcome JobInfo JobState JobStateLike EnqueueAction NewJob "
            "OnConflict Requeued"
        ),
        "duetime.domain.jobs.log_lines": "CapturedLog LogLine",
        "duetime.domain.jobs.outcome": "Cancel Completed Discard Retry Skip Snooze",
        "duetime.domain.jobs.queue": "Limits QueueInfo",
        "duetime.domain.jobs.retry": "Constant Custom Delays Exponential RetryPolicy",
        "duetime.domain.page": "Page",
        "duetime.domain.reasons": "Check Explanation Reason",
        "duetime.domain.redaction": "RedactHook",
        "duetime.domain.reminders.delivery": "Delivery DeliveryStatus ReceiptStatus",
        "duetime.domain.reminders.digest": "Digest",
        "duetime.domain.reminders.explain_scope": "ScopeChange",
        "duetime.domain.reminders.quiet": "Quiet",
        "duetime.domain.reminders.recipient": "ChannelsLike Disabled MutedLike Recipient Route",
        "duetime.domain.reminders.recurrence": "Occurrence OccurrenceChange Recurrence RepeatsLike",
        "duetime.domain.reminders.reminder": (
            "MovePreview Reminder ReminderStatus ReminderStatusLike ResendStatus Resent "
            "Subject SubjectStatus"
        ),
        "duetime.domain.reminders.rule": "Past Rule Whose",
        "duetime.domain.reminders.rule_text": "RuleLike RulesLike",
        "duetime.domain.reminders.tracking": "TableArguments TableKind Track",
        "duetime.domain.schedules.presets": "Preset",
        "duetime.domain.schedules.preview": "PreviewRow",
        "duetime.domain.schedules.schedule": (
            "CatchUp Overlap Policy PolicyArguments TickStatus TickStatusLike"
        ),
        "duetime.domain.schedules.timetable": "Exclusions Spec Timetable",
        "duetime.domain.stats.agenda": (
            "AgendaItem AgendaKind EndedReminder QuietSpan RecipientWeek SpecPreview SpecTick"
        ),
        "duetime.domain.stats.now": "NowStats QueueStats TaskStats Totals",
        "duetime.domain.stats.problems": "Action ProblemInfo Severity",
        "duetime.domain.stats.search": "Match MatchKind",
        "duetime.domain.stats.series": "AttemptSample Series SeriesPoint",
        "duetime.domain.stats.timeline": (
            "HeatCell HeatMap Timeline TimelinePart TimelineRow TimelineRun"
        ),
        "duetime.engine.context": "Context",
        "duetime.engine.hooks": "CallNext ErrorHook LifeHook Middleware",
        "duetime.engine.worker": "Worker",
        "duetime.errors": (
            "AccountNotFound AnswerNotKept ClaimLost DataRejected DatabaseCorrupted "
            "DatabaseUnreachable DeliveryNotFound DuetimeError EndlessWork FlowChanged "
            "FlowEnded FlowNotFound FlowTimeout IdempotencyKeyReused IllegalTransition "
            "InvalidArguments InvalidDatabaseURL InvalidInput InvalidResult InvalidSchedule "
            "JobCancelled JobFailed JobNotFound KeyConflict LastAdmin LoginFailed "
            "MissingPackage NameTaken OlderRelease PresetNotFound QueueNotFound "
            "RecipientNotFound ReminderNotFound RequestInProgress ResultTimeout "
            "ScheduleNotFound SchemaMismatch ScopeNotFound ServiceError ServiceUnreachable "
            "SettingsError SignalTimeout StartupFailed StepFailed StorageError "
            "SubjectNotFound TableNotFound TokenNotFound TooManyLogins TransactionConflict "
            "TransientError UnknownFlow UnknownTask UnsupportedTransaction"
        ),
        "duetime.flows.calls": "Step current_step",
        "duetime.flows.flow": "Flow Startable SupportsResult",
        "duetime.integrations.ical.exchange": "Imported",
        "duetime.integrations.ical.reading": "Problem",
        "duetime.reminders.templates.limits": "TemplateError",
        "duetime.reminders.templates.template": "Template",
        "duetime.settings": "Retention Settings SettingsArguments WorkerArguments",
        "duetime.storage.reminders.rows": "ScopeInfo",
        "duetime.storage.reminders.tracking": "TrackedInfo",
        "duetime.storage.schedules.rows": "NewSchedule TickInfo",
        "duetime.storage.store": "WorkerInfo",
        "duetime.telemetry.logs": "configure_logging",
    }.items()
    for name in names.split()
}
# isort: on
# fmt: on


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
