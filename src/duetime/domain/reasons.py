"""Why something happened or did not: a code and its facts. The sentence is made where it is shown.

Programs compare codes, which are stable; people read sentences, which are not. What a person or a
handler wrote is a fact, `text`, and is never parsed. A time is a fact in ISO 8601, a span is one in
seconds.
"""

from __future__ import annotations

import re
import string
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from duetime.domain.duration import format_duration, format_time

REASONS = {
    # Why a tick of a schedule was skipped, waits, or ran other than at its time.
    "schedule_paused": "paused by {by}[: {text}]",
    "schedule_failing": "paused by {by}: {failures:run/runs} failed in a row",
    "schedule_changed": "the schedule was changed",
    "schedule_deleted": "the schedule was deleted",
    "schedule_broken": "the schedule was set aside: {why:reason}",
    "schedule_renamed": "the schedule was renamed to {name}",
    "schedule_undeclared": "the schedule is no longer declared",
    "tick_closed": "the tick was closed before, or its schedule was set aside or deleted",
    "excluded_date": "excluded date {date}",
    "excluded_mask": "excluded by {mask!r}",
    "late": "{late:span} late",
    "late_skipped": "{late:span} late, and catch_up is skip",
    "late_max_age": "{late:span} late, and max_age is {limit:span}",
    "late_expires": "{late:span} late, and expires is {limit:span}",
    "late_max_runs": "{late:span} late, and only the last {limit} missed runs are caught up",
    "late_when_given": "{late:span} late when the schedule was given this time",
    "coalesced": "coalesced into a later run: {late:span} late",
    "dependency": "{after!r} has not succeeded within {within:span}: the last time was {last}",
    "dependency_never": "{after!r} has never succeeded",
    "overlap": "the run of {tick} has not finished[; it is cancelled, as job {cancelled:list}]",
    "overlap_full": "the run of {tick} has not finished, and another run is already waiting",
    "shadow": "in shadow: recorded, and not run",
    "triggered": "triggered by {by}",
    "backfilled": "backfilled by {by}",
    # Why a reminder was armed, waits, was sent, or was not.
    "past_skipped": "its time {time} had passed when the subject was put",
    "past_expired": "its time {time} had passed when the subject was put, and it had to start "
    "before {expires_at}",
    "past_replaced": "its time {time} had passed when the subject was put, and a later time of the "
    "rule is sent in its place",
    "past_sent": "its time {time} had passed when the subject was put, and its rule sends it late",
    "subject_completed": "the subject was completed[: {text}]",
    "subject_deleted": "the subject was deleted[: {text}]",
    "subject_moved": "the subject moved to {to}",
    "subject_without_due": "the subject no longer has a due time",
    "subject_changed": "the subject has changed, and its reminders have not been armed again yet",
    "recipient_removed": "the recipient is no longer one of the subject's",
    "rule_removed": "its rule no longer applies",
    "rules_changed": "the rules changed",
    "zone_changed": "the time zone of {recipient} changed",
    "occurrence_skipped": "this occurrence is skipped",
    "occurrence_completed": "this occurrence was completed",
    "occurrence_moved": "this occurrence moved to {to}",
    "occurrence_gone": "the subject no longer repeats then",
    "not_computable": "the reminders of the subject cannot be computed: {text}",
    "reminder_snoozed": "snoozed by {by}",
    "reminder_resent": "sent again by {by}",
    "acknowledged": "acknowledged by {by}",
    "not_acknowledged": "{recipient} did not acknowledge it in time"
    "[, and it had to start before {expires_at}]",
    "not_reached": "{recipient} was not reached[: {why:reason}]"
    "[, and it had to start before {expires_at}]",
    "not_delivered": "{channel} reported that it {status}",
    "reported_sent": "{channel} reported that it was {status}[; before that it was {was}]"
    "[: {why:reason}]",
    "acknowledged_sent": "{by} has acknowledged it[; before that it was {was}][: {why:reason}]",
    "sent_before": "it was sent before, and is not sent again: {why:reason}",
    "sent_anyway": "it was being sent when it became {was}[: {why:reason}]",
    "sent_in_digest": "it went out in digest {digest}, with {others} more"
    "[, beyond {beyond} in an hour, before one would have expired]"
    "[; it was being sent when it became {was}][: {why:reason}]",
    "sent_as_other": "it was sent already, as reminder {reminder}",
    "other_sending": "reminder {reminder}, which is the same, is being sent",
    "other_job": "it is sent by job {job}, not by this one",
    "reminder_ended": "the reminder is {status}[: {why:reason}]",
    "just_ended": "it was sent or withdrawn just now",
    "quiet_hours": "it waits until {local} ({tz}) because of the quiet hours {quiet} of "
    "{recipient}",
    "settings_changed": "its wait ended early because the settings of {recipient} were changed; "
    "otherwise {why:reason}",
    "became_urgent": "its wait ended early because its rule is urgent now; otherwise {why:reason}",
    "let_out": "{by} sent it at once[; otherwise {why:reason}]",
    "waited_quiet_hours": "it waited until {local} ({tz}) because of the quiet hours {quiet} of "
    "{recipient}",
    "sent_in_quiet_hours": "it was sent in the quiet hours {quiet} of {recipient}: it would have "
    "expired at {expires_at}",
    "sent_beyond_limit": "it was sent although {recipient} gets at most {limit} in an hour: it "
    "would have expired at {expires_at}",
    "hourly_limit": "it waits until {until}: {recipient} gets at most {limit} in an hour",
    "waited_hourly_limit": "it waited until {until}: {recipient} gets at most {limit} in an hour",
    "in_digest": "it waits for digest {digest}[: {recipient} gets at most {limit} in an hour]",
    "waited_in_digest": "it waited for digest {digest}"
    "[: {recipient} gets at most {limit} in an hour]",
    "digest_sending": "digest {digest}, which contains it, is being sent",
    "digest_gone": "its digest is gone",
    "digest_waits": "the digest of {recipient} waits until {until}",
    "digest_empty": "nothing is left in the digest",
    "digest_single": "the only reminder in the digest is sent alone",
    "digest_cancelled": "it was to go out in digest {digest}, which was cancelled[: {text}]",
    "digest_failed": "it was to go out in digest {digest}, which failed[: {why:reason}]",
    "muted_all": "{recipient} has muted everything",
    "muted": "{recipient} has muted {kind} {name}",
    "no_rule_channel": "{recipient} has none of the rule's channels: {channels:list}",
    "no_channel_left": "no channel of {recipient} is left: {channels:reasons}",
    "message_failed": "{text}",
    "no_sender": "there is neither a handler (@app.on_reminder) nor a channel",
    "channels_failed": "{channels:reasons}",
    "channel_muted": "{channel} is muted",
    "channel_disabled": "{channel} is disabled[ ({text})]",
    "channel_missing": "there is no channel {channel!r} here",
    "channel_not_tried": "{channel} was not tried[: {why:reason}]",
    "channel_failed": "{channel} failed[ {times:time/times}][: {why:reason}]",
    "channel_failed_later": "{channel} accepted it, and reported later that it failed"
    "[: {why:reason}]",
    "channel_bounced": "{channel} bounced[: {why:reason}]",
    "channel_rate": "{channel} accepts {rate}: it can take the next message at {at}",
    "subjects_locked": "some subjects are locked",
    "run_ended": "the run of the flow that waited for it has ended",
    # What a channel, a handler or a provider said when a message was not sent or not delivered.
    "not_sent": "{text}",
    "exception": "{type}: {text}",
    "receipt": "{text}",
    # What is wrong with a schedule, a tracked table or one of its rows.
    "definition_unusable": "its definition cannot be used: {text}",
    "triggers_gone": "its triggers are gone: the table was dropped, or someone dropped them",
    "triggers_incomplete": "some of its triggers are gone or disabled",
    "column_gone": "the column {column} is gone, and writes to the table fail",
    "subject_not_tracked": "the subject {subject} was not put by this table, and is not changed",
    "row_of_subject": "{subject}: {why:reason}",
    "row_unusable": "{problems:reasons}",
    "zone_unknown": "there is no time zone {tz!r}: {used} is used",
    "due_unreadable": "its due time {due!r} is neither ISO 8601 nor a number",
    "due_out_of_range": "its due time is not between the years 1970 and 9000",
    "scope_too_long": "its scope has more than {limit} characters: it is in none",
    "too_many_recipients": "it has more than {limit} recipients: nobody is reminded",
    "recipients_unreadable": "its recipients are neither a name nor a list of names: nobody is "
    "reminded",
    "recipient_too_long": "a recipient of more than {limit} characters is left out",
    "data_too_large": "its data takes more than 1 MiB: none is kept",
    "data_too_deep": "its data is nested in more than {limit} levels: none is kept",
    "id_too_long": "its id is too long, and is shortened",
    "rule_unreadable": "the rule {rule!r} cannot be read and is left out: write minutes before the "
    "due time, such as 60, or a text such as '-1h'",
    "too_many_rules": "it has more than {limit} rules: none is used, and those of its scope apply",
    "parent_too_long": "its parent has more than {limit} characters: it has none",
    "scope_in_itself": "the scope {parent!r} is inside it, so it cannot be its parent: it has none",
    "row_gone": "its row is gone, so it sets no rules; it is removed once nothing is inside it",
    "scope_not_tracked": "the scope was put by the application, and the row does not change it: "
    "remove its rules and its parent (`scopes put` without options), then put the table again",
    "row_of_scope": "{scope}: {why:reason}",
    # Why a job ended, or runs again.
    "failed": "{text}",
    "skipped": "{text}",
    "skipped_by_handler": "skipped by its handler",
    "snoozed": "snoozed by its handler[: {text}]",
    "retry": "its handler requested a retry[: {text}]",
    "discarded": "discarded by its handler[: {text}]",
    "cancelled_by_handler": "cancelled by its handler[: {text}]",
    "job_gone": "its job is gone",
    "job_ended": "its job is {outcome}",
    "cancelled": "cancelled[: {text}]",
    "superseded": "superseded[: {text}]",
    "expired": "it had to start before {expires_at}",
    "cancelled_before_start": "cancelled before it began",
    "cancelled_given_back": "cancelled[: {text}]; its worker gave it back",
    "cancelled_worker_lost": "cancelled[: {text}]; its worker was lost",
    "next_run_due": "cancelled: the next run of its schedule is due",
    "webhook_answered": "{host} answered {status}[: {text}]",
    "webhook_failed": "{text}",
    "run_stopped": "cancelled: run {run}, of which it is a step, has stopped",
    "worker_lost": "its worker was lost: the lease ran out before the job finished",
    "parked": "it was parked for too long[: {why:reason}]",
    # Why a job is parked.
    "task_unknown": "worker {worker} does not know the task {tasks:list}",
    "arguments_unusable": "worker {worker} cannot use its arguments: {text}",
    "row_unreadable": "its row cannot be read: {text}",
}
"""Every code, with its sentence. A part in brackets is left out if a fact in it is missing."""

_ALSO_UNTIL = "; this applies to all ticks up to {until_tick}"
"""Of a row of the ledger that stands for very many ticks, whatever their reason is."""

Sentences = Mapping[str, str]


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """A code and the facts behind it; `str()` makes the sentence.

    >>> str(Reason.of("late_max_age", late=timedelta(minutes=90), limit=timedelta(hours=1)))
    '1h30m late, and max_age is 1h'
    >>> str(Reason("from_a_newer_version", {"by": "ann"}))
    'from a newer version (by: ann)'
    """

    code: str
    facts: dict[str, Any] = {}

    @classmethod
    def of(cls, code: str, **facts: Any) -> Reason:
        """Make one; facts that are None are left out."""
        return cls(code, plain_facts(facts))

    def because(self, why: Reason | None, **facts: Any) -> Reason:
        """The same, with more facts and the reason behind it."""
        return Reason(self.code, self.facts | plain_facts(facts | {"why": why}))

    def __str__(self) -> str:
        also = _ALSO_UNTIL if "until_tick" in self.facts else ""
        return make_sentence(REASONS, self.code, self.facts, also)


class Check(msgspec.Struct, frozen=True):
    """One question of the chain behind an explanation, and its answer."""

    question: str
    passed: bool | None
    """None: it was not reached, because a check before it failed."""
    sentence: str | None = None
    """The fact behind the answer."""
    code: str | None = None
    """The code of the fact."""

    @property
    def outcome(self) -> str:
        """The answer in words."""
        return {True: "passed", False: "failed", None: "not reached"}[self.passed]


class Explanation(msgspec.Struct, frozen=True):
    """What `explain` returns: a stable code, the sentence, and the facts behind both."""

    code: str
    sentence: str
    facts: dict[str, Any]
    steps: tuple[Explanation, ...] = ()
    """What it follows from, in order: the checks that were made, or the reasons behind it."""
    checks: tuple[Check, ...] = ()
    """The chain of checks from the first to the last: passed, failed, and not reached."""

    def __str__(self) -> str:
        return self.sentence

    @property
    def other_steps(self) -> list[Explanation]:
        """The steps that neither the sentence nor a check mentions."""
        said = [self.sentence, *(check.sentence for check in self.checks if check.sentence)]
        text = " ".join(said).casefold()
        return [step for step in self.steps if step.sentence.casefold().rstrip(".") not in text]


def make_sentence(sentences: Sentences, code: str, facts: Mapping[str, Any], also: str = "") -> str:
    """Fill in the sentence of a code. One that is unknown here still reads.

    >>> make_sentence({"paused": "paused by {by}[: {text}]"}, "paused", {"by": "ann"})
    'paused by ann'
    """
    template = sentences.get(code)
    if template is not None:
        try:
            return "".join(_fill(template + also, facts))
        except LookupError:
            pass
    shown = ", ".join(f"{name}: {value}" for name, value in facts.items())
    return code.replace("_", " ") + (f" ({shown})" if shown else "")


def make_explanation(
    sentences: Sentences,
    code: str,
    facts: Mapping[str, Any],
    *,
    steps: Sequence[Explanation | Reason | None] = (),
    checks: Sequence[Check] = (),
) -> Explanation:
    """Make the explanation of a code. Of the steps, those that are None are left out."""
    given = plain_facts(facts)
    found = tuple(
        Explanation(step.code, str(step), step.facts) if isinstance(step, Reason) else step
        for step in steps
        if step is not None
    )
    return Explanation(code, make_sentence(sentences, code, given), given, found, tuple(checks))


class Question(NamedTuple):
    """A question of a chain, with the codes of the facts that answer it."""

    text: str
    passing: Container[str] = ()
    failing: Container[str] = ()


def make_checks(
    questions: Sequence[Question], facts: Sequence[Explanation | Reason]
) -> tuple[Check, ...]:
    """Answer questions in their order. One that no fact answers was not reached; of facts that
    answer the same question, one that fails decides.

    >>> late, muted = Question("Has its time come?", ["late"]), Question("Muted?", (), ["muted"])
    >>> found = [Reason("late", {"late": 60}), Reason("muted", {})]
    >>> [check.passed for check in make_checks([late, muted, Question("Sent?")], found)]
    [True, False, None]
    """
    return tuple(_answer(question, facts) for question in questions)


def make_ended_checks(
    questions: Sequence[Question], why: Explanation | Reason
) -> tuple[Check, ...]:
    """The chain of what has ended: from the question that the reason answers, else the last."""
    places = [place for place, one in enumerate(questions) if why.code in one.failing]
    first, *rest = questions[places[0] if places else -1 :]
    failed = Check(first.text, False, as_sentence(str(why)), why.code)
    return failed, *(Check(question.text, None) for question in rest)


def _answer(question: Question, facts: Sequence[Explanation | Reason]) -> Check:
    failed = next((fact for fact in facts if fact.code in question.failing), None)
    if failed is not None:
        return Check(question.text, False, as_sentence(str(failed)), failed.code)
    passed = [fact for fact in facts if fact.code in question.passing]
    if not passed:
        return Check(question.text, None)
    told = " ".join(as_sentence(str(fact)) for fact in passed)
    return Check(question.text, True, told, passed[-1].code)


def as_sentence(clause: str) -> str:
    """With a capital at its start and a full stop at its end."""
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}."


def describe_error(code: str | None, facts: dict[str, Any] | None, error: str | None) -> str | None:
    """What an attempt's record says to people: the text of its error, else the sentence of
    its code.

    >>> describe_error("ValueError", None, "no such order")
    'no such order'
    >>> describe_error("schedule_paused", {"by": "ann"}, None)
    'paused by ann'
    """
    if error is not None or code is None:
        return error
    return str(Reason(code, facts or {}))


def read_reason(text: str | None) -> Reason | None:
    """Return a stored reason. Whatever is stored, it can be shown."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Reason)
    except (msgspec.DecodeError, RecursionError):
        return Reason("unreadable_reason", {"text": text[:200]})


def write_reason(reason: Reason) -> str:
    """Return it as it is stored."""
    return msgspec.json.encode(reason).decode()


def write_cancel_reason(reason: Reason) -> str | None:
    """Return the reason of a cancel as its claim has it. None: nobody said anything, so that the
    attempt itself says how it ended."""
    return None if reason == Reason("cancelled") else write_reason(reason)


def read_attempt_reason(
    outcome: str, code: str | None, error: str | None, facts: str | None
) -> Reason:
    """Return why an attempt ended, from its columns. What a handler raised has no code of ours."""
    if outcome == "dead" and error is not None:
        return Reason.of("failed", error_code=code, text=error)
    if code is None and error is None:
        return Reason.of("job_ended", outcome=outcome)
    known = {} if facts is None else msgspec.json.decode(facts)
    return Reason(code or outcome, known | plain_facts({"text": error}))


def plain_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as JSON has them, without those that are None."""
    return {name: _plain(value) for name, value in facts.items() if value is not None}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return format_time(value)
        case timedelta():
            seconds = value.total_seconds()
            return int(seconds) if seconds.is_integer() else seconds
        case Reason():
            return msgspec.to_builtins(value)
        case list() | tuple():
            return [_plain(one) for one in value]
    return value


_OPTIONAL = re.compile(r"\[([^\]]*)\]")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")
"""A moment with a fraction of a second, which is kept as a fact and not shown."""


def _fill(template: str, facts: Mapping[str, Any]) -> Iterator[str]:
    """The parts of a sentence; raises `LookupError` if a fact is missing outside of brackets."""
    for place, part in enumerate(_OPTIONAL.split(template)):
        try:
            yield _FORMATTER.vformat(part, (), facts)
        except LookupError:
            if place % 2 == 0:
                raise


class _Formatter(string.Formatter):
    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value = kwargs.get(str(key))
        if value is None:
            raise LookupError(key)
        return value

    def format_field(self, value: Any, format_spec: str) -> str:
        match format_spec:
            case "if":
                return ""
            case "span" if isinstance(value, int | float):
                return format_duration(timedelta(seconds=value))
            case "utc" if isinstance(value, str):
                return f"{datetime.fromisoformat(value):%Y-%m-%d %H:%M:%S} UTC"
            case "list" if isinstance(value, list):
                return ", ".join(map(str, value))
            case "reason" if isinstance(value, dict):
                return _one_clause(msgspec.convert(value, Reason))
            case "reasons" if isinstance(value, list):
                return "; ".join(map(_one_clause, msgspec.convert(value, list[Reason])))
            case "span" | "utc" | "list" | "reason" | "reasons":
                return str(value)
            case _ if "/" in format_spec:
                one, many = format_spec.split("/")
                return f"{value} {one if value == 1 else many}"
            case "" if isinstance(value, str) and _TIME.fullmatch(value):
                return value[:19] + "Z"
        return str(super().format_field(value, format_spec))


def _one_clause(reason: Reason) -> str:
    """Inside of another sentence, one does not end."""
    return str(reason).rstrip(".")


_FORMATTER = _Formatter()
