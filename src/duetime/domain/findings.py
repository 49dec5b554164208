"""What `duetime doctor` finds: stable codes, each with its level, its sentence, and what to do.

Programs compare codes and levels; people read the sentence and the advice. The problems of what
waits and runs are found by `app.stats.problems`, and have its codes: see `domain/stats`.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from duetime.domain.reasons import make_sentence, plain_facts


class FindingLevel(StrEnum):
    """How bad a finding is. With an error something does not run, or has failed for good."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class FindingText(NamedTuple):
    """What is said of a finding. In braces are its facts; a part in brackets is left out if one of
    its facts is missing."""

    level: FindingLevel
    sentence: str
    advice: str = ""


_OK, _WARNING, _ERROR = FindingLevel.OK, FindingLevel.WARNING, FindingLevel.ERROR

_LISTEN_ADVICE = (
    "Set listen_database (DUETIME_LISTEN_DATABASE) to a URL that leads to the same database "
    "without a pooler, or set notify (DUETIME_NOTIFY) to off: then workers poll every second."
)
_ZONE_ADVICE = (
    "Update the operating system's tzdata package on the database server and restart PostgreSQL; "
    "here, update that package or run `pip install --upgrade tzdata`."
)

FINDINGS: dict[str, FindingText] = {
    # Any check
    "check_failed": FindingText(
        _ERROR,
        "This check could not be completed: {text}",
        "Correct what the message names, then run `duetime doctor` again.",
    ),
    "not_allowed": FindingText(
        _WARNING,
        "This role lacks the rights for this check[: {text}].",
        "To include this check, run it as {role}.",
    ),
    "left_out": FindingText(
        _WARNING,
        "{count} more findings with the code {of} are left out.",
        "Fix those that are shown first.",
    ),
    # database
    "database_ok": FindingText(_OK, "{database} answered in {took} ms ({version})."),
    "database_unusable": FindingText(
        _ERROR,
        "The database cannot be used: {text}",
        "Check that the server runs, and the URL that DUETIME_DATABASE or --database gives.",
    ),
    "database_missing": FindingText(
        _ERROR,
        "There is no file {file!r}.",
        "Check the path in the URL. To create the file: `duetime db init`.",
    ),
    # writable
    "writable_ok": FindingText(_OK, "The database accepts changes."),
    "read_only": FindingText(
        _ERROR,
        "The database accepts no changes: {text}.",
        "Check which server the URL names: after a failover it must be the new primary. For "
        "SQLite, give this user write permission to the file and its directory.",
    ),
    # schema
    "schema_ok": FindingText(_OK, "The schema has version {version}, which this Duetime uses."),
    "schema_missing": FindingText(
        _ERROR, "Duetime's tables are not in this database.", "Run `duetime db init`."
    ),
    "schema_old": FindingText(
        _ERROR,
        "The schema has version {version}, and this Duetime needs {latest}.",
        "Run `duetime db upgrade`.",
    ),
    "schema_newer": FindingText(
        _ERROR,
        "The schema has version {version}, newer than this Duetime knows ({latest}).",
        "Upgrade the package `duetime` here.",
    ),
    "functions_differ": FindingText(
        _WARNING,
        "The SQL functions in the database belong to another release of Duetime.",
        "Run `duetime db upgrade` when the deployment is complete.",
    ),
    # clock
    "clock_ok": FindingText(_OK, "This machine's clock is {skew:span} from the database's."),
    "clock_of_machine": FindingText(_OK, "The clock is this machine's: SQLite has none."),
    "clock_skewed": FindingText(
        _WARNING,
        "This machine's clock is {skew:span} {direction} the database's clock.",
        "Synchronise both machines by NTP. Duetime uses the database's clock, so times that your "
        "code computes from this machine's clock are wrong by that much.",
    ),
    "clock_driven": FindingText(
        _ERROR,
        "Duetime's clock in this database shows {shown}, but it is {real}: jobs start at the "
        "wrong time.",
        "A test drove the clock and did not restore it. In Python, run "
        "`await (await app.store()).drive_clock(None)`.",
    ),
    # listen
    "listen_ok": FindingText(_OK, "A notification arrived after {took} ms."),
    "listen_off": FindingText(_OK, "NOTIFY is off: workers poll every {poll:span}."),
    "listen_silent": FindingText(
        _ERROR,
        "A notification was sent and did not arrive within {waited:span}, so workers find new jobs "
        "only by polling.",
        _LISTEN_ADVICE,
    ),
    "listen_refused": FindingText(
        _ERROR, "The connection for LISTEN cannot be opened: {text}", _LISTEN_ADVICE
    ),
    # pooler
    "pooler_none": FindingText(_OK, "No pooler shares the sessions of the database."),
    "pooler_ok": FindingText(
        _OK, "A pooler in transaction mode is in between, and the settings fit it."
    ),
    "pooler_listen": FindingText(
        _ERROR,
        "The URL of {setting} leads to a pooler in transaction mode, which does not support "
        "LISTEN: workers refuse to start.",
        _LISTEN_ADVICE,
    ),
    "pooler_prepare": FindingText(
        _ERROR,
        "The URL of database leads to a pooler in transaction mode, and prepare is on: workers "
        "refuse to start.",
        "Set prepare (DUETIME_PREPARE) to off.",
    ),
    # vacuum
    "vacuum_ok": FindingText(_OK, "Autovacuum keeps up: at most {dead} dead rows in a table."),
    "autovacuum_off": FindingText(
        _WARNING,
        "Autovacuum is off[ for {tables:list}]: dead rows pile up, and claims become slower.",
        "Switch it on: `alter table … reset (autovacuum_enabled)`, and autovacuum = on in "
        "postgresql.conf.",
    ),
    "dead_rows": FindingText(
        _WARNING,
        "The table {table} has {dead} dead rows beside {live} live ones"
        "[; it was vacuumed last at {vacuumed_at:utc}].",
        "End old transactions (see the check `transactions`), then run `vacuum {table}`.",
    ),
    # transactions
    "transactions_ok": FindingText(_OK, "No transaction has been open for long."),
    "transaction_old": FindingText(
        _WARNING,
        "A transaction has been open for {age:span} (process {pid}, user {user}"
        "[, application {application}], {state}): vacuum cannot remove dead rows, and claims "
        "become slower.",
        "Commit it, or end its session: `select pg_terminate_backend({pid})`. To have the server "
        "end such sessions, set idle_in_transaction_session_timeout.",
    ),
    "prepared_transaction_old": FindingText(
        _WARNING,
        "The prepared transaction {gid!r} of {user} has waited for {age:span}: vacuum cannot "
        "remove dead rows, and claims become slower.",
        "Commit it or roll it back: `rollback prepared {literal}`.",
    ),
    "slot_unused": FindingText(
        _WARNING,
        "The replication slot {slot!r} is not in use, and it keeps vacuum from removing what died "
        "in the last {transactions} transactions.",
        "Start its standby, or drop it: `select pg_drop_replication_slot('{slot}')`.",
    ),
    "write_lock_held": FindingText(
        _WARNING,
        "Another connection has held the write lock for more than {waited:span}: nothing else can "
        "be written.",
        "Commit its transaction, and keep transactions short.",
    ),
    "log_large": FindingText(
        _WARNING,
        "The write-ahead log has {megabytes} MB: a reader keeps a transaction open, or no worker "
        "runs.",
        "End transactions that only read, and start a worker, which empties the log.",
    ),
    # zones
    "zones_ok": FindingText(_OK, "The time-zone data of this process is {version}."),
    "zones_agree": FindingText(_OK, "PostgreSQL and this process agree on {count} time zones."),
    "zones_old": FindingText(
        _WARNING,
        "The time-zone data of this process is {version}: clock changes that were decided since "
        "are not in it.",
        _ZONE_ADVICE,
    ),
    "zones_differ": FindingText(
        _WARNING,
        "PostgreSQL and this process disagree on {zones:list}[ and {more} more time zones]: "
        "reminders that PostgreSQL computes come at other times.",
        _ZONE_ADVICE,
    ),
    # sqlite
    "sqlite_ok": FindingText(_OK, "SQLite {version}."),
    "sqlite_wal_reset": FindingText(
        _WARNING,
        "SQLite {version} has a rare bug that may corrupt a file if two connections write or "
        "checkpoint at the same moment.",
        "Use SQLite 3.51.3 or later. Until then keep few processes on the file, and back it up "
        "(`duetime db backup`).",
    ),
    # journal
    "journal_ok": FindingText(_OK, "The file is in WAL mode."),
    "journal_not_wal": FindingText(
        _WARNING,
        "The journal mode of the file is {mode}, not WAL: readers and writers wait for each other.",
        "Close every other program that has the file open, then start a worker, which switches it "
        "to WAL.",
    ),
    # file_system
    "file_system_ok": FindingText(_OK, "The file is on {kind}."),
    "file_system_network": FindingText(
        _ERROR,
        "The file is on {kind}, a network file system, whose locks do not protect it from "
        "corruption.",
        "Move the file to a local disk, or use PostgreSQL.",
    ),
    "file_system_temporary": FindingText(
        _WARNING,
        "The file is on {kind}: it is lost when the machine or the container is restarted.",
        "Move the file to a disk or a volume.",
    ),
    # workers
    "workers_ok": FindingText(_OK, "Live workers: {count}."),
    "workers_none": FindingText(
        _WARNING,
        "No worker is running. Nothing is due.",
        "Start one: `duetime worker --app MODULE:APP`.",
    ),
    # queues
    "queues_ok": FindingText(_OK, "Every queue with due jobs is served, and none is late."),
    # schedules
    "schedules_ok": FindingText(_OK, "Schedules that fire as planned: {count}."),
    "schedule_never_fired": FindingText(
        _WARNING,
        "The schedule {schedule!r} has never fired, though it was to run at {missed:utc}.",
        "`duetime schedules explain {word}` says why.",
    ),
    "schedule_behind": FindingText(
        _WARNING,
        "The schedule {schedule!r} is {late:span} behind: it was to run at {missed:utc}.",
        "`duetime schedules explain {word}` says why.",
    ),
    "schedule_without_tick": FindingText(
        _WARNING,
        "The schedule {schedule!r} has never fired and never will: its timetable has no further "
        "tick.",
        "Correct its timetable, or delete it: `duetime schedules delete {word}`.",
    ),
    # jobs
    "jobs_ok": FindingText(_OK, "No job is dead or parked, and no run of a flow has failed."),
    # reminders
    "reminders_ok": FindingText(
        _OK, "No reminder failed in the last day, and every address accepts messages."
    ),
    # tables
    "tables_ok": FindingText(_OK, "Every tracked table is followed."),
    # tasks
    "tasks_ok": FindingText(_OK, "Every task that jobs or schedules wait for is registered."),
    "task_missing": FindingText(
        _ERROR,
        "{what} waits for the task {task!r}, which neither this app nor a live worker registers.",
        "Register the task with `@app.task(name={task!r})`, import the module that does so, or "
        "cancel the jobs.",
    ),
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that `duetime doctor` found."""

    check: str
    """What was examined, such as `clock`."""
    code: str
    level: FindingLevel
    message: str
    """One sentence."""
    advice: str = ""
    """What to do; empty if nothing has to be done."""
    facts: dict[str, Any] = {}

    @classmethod
    def of(cls, check: str, code: str, **facts: Any) -> Finding:
        """Make the finding of a code. Facts that are None are left out."""
        text, given = FINDINGS[code], plain_facts(facts)
        return cls(
            check=check,
            code=code,
            level=text.level,
            message=make_sentence({code: text.sentence}, code, given),
            advice=make_sentence({code: text.advice}, code, given) if text.advice else "",
            facts=given,
        )


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """From where on something is worth a warning."""

    clock_skew: timedelta = timedelta(seconds=1)
    notification: timedelta = timedelta(seconds=2)
    transaction_age: timedelta = timedelta(minutes=5)
    dead_rows: int = 100_000
    write_lock: timedelta = timedelta(seconds=2)
    log_megabytes: int = 100
    lateness: timedelta = timedelta(minutes=5)
