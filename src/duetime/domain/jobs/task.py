"""A task: a handler with its options, and the JSON form of its arguments and its result."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from duetime.domain.checks import check_finite, check_json_text, check_name
from duetime.domain.jobs.job import DEFAULT_QUEUE
from duetime.domain.jobs.outcome import Outcome
from duetime.domain.jobs.retry import Exponential, RetryPolicy
from duetime.errors import InvalidArguments, InvalidInput, InvalidResult

MAX_ARGS_BYTES = 1024 * 1024
_UNREADABLE = (msgspec.ValidationError, msgspec.DecodeError, RecursionError)
_PATH = re.compile(r"at `\$\.(\w+)")
_SOUND = frozenset({int, bool, type(None)})
_READ_SOUND = _SOUND | {str, float}
"""What is read from JSON as one of these is no NaN."""
_FIELD = re.compile(r"(?:missing required|unknown) field `(\w+)`")


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a task's jobs have in common, unless `using(...)` says otherwise."""

    queue: str
    priority: int
    retry: RetryPolicy
    retry_on: tuple[type[BaseException], ...]
    max_attempts: int
    timeout: timedelta | None
    expires: timedelta | None
    keep_result: bool
    max_args_bytes: int = MAX_ARGS_BYTES
    flow: bool = False
    """Its jobs are runs of a flow."""
    overrides_jobs: bool = False
    """Its attempts and its timeout apply to all its jobs, whatever the jobs say: SQL made them,
    perhaps before any worker had started."""


OWN_RETRY = Exponential("1s", max="1m", max_attempts=1000)
"""Duetime's own tasks give up late: what they leave undone, nothing else would do."""


def own_options(*, keep_result: bool = False) -> TaskOptions:
    """The options of Duetime's own tasks, which go before all others."""
    return TaskOptions(
        queue=DEFAULT_QUEUE,
        priority=0,
        retry=OWN_RETRY,
        retry_on=(Exception,),
        max_attempts=OWN_RETRY.max_attempts,
        timeout=None,
        expires=None,
        keep_result=keep_result,
    )


class TaskDefinition:
    """Writes a call of the function as JSON, and reads it back."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        options: TaskOptions,
        context_type: type[Any],
        any_arguments: bool = False,
    ) -> None:
        self.function = function
        self.name = check_name(name, what="task's name")
        self.options = options
        self.any_arguments = any_arguments
        """Its arguments are any JSON object; the signature, which takes `**arguments`, names none.
        The function reads them from its context, where none of them hides another parameter."""
        self.is_async = inspect.iscoroutinefunction(function)
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise InvalidInput(
                f"Task {name!r} is a generator. A task must be a plain function or a coroutine "
                "function."
            )
        self._signature = inspect.signature(function)
        self.context_name, self._struct, self._result_type = self._read_signature(context_type)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            dict[str, Any] if any_arguments else self._struct
        )
        self._fields: tuple[str, ...] = self._struct.__struct_fields__
        parameters = [
            parameter
            for parameter in self._signature.parameters.values()
            if parameter.name != self.context_name
            and not (any_arguments and parameter.kind is parameter.VAR_KEYWORD)
        ]
        self._call = self._signature.replace(parameters=parameters)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments that are stored."""
        return self._fields

    @property
    def parameters(self) -> list[tuple[inspect.Parameter, Any]]:
        """The parameters of the arguments that are stored, with their types."""
        types = {field.name: field.type for field in msgspec.structs.fields(self._struct)}
        return [(one, types[name]) for name, one in self._call.parameters.items()]

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> msgspec.Raw:
        """Return the call's arguments as a JSON object; raise `InvalidArguments` naming the one
        that does not fit."""
        if args:
            kwargs = self._bind(args, kwargs)
        try:
            raw = msgspec.json.encode(kwargs)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._not_json(kwargs, error) from None
        if _may_be_unsound(kwargs):
            for argument, value in kwargs.items():
                self._check_finite(argument, value, raw)
                if b"\\u0000" in raw:
                    self._check_text(argument, msgspec.json.encode(value))
        if len(raw) > self.options.max_args_bytes:
            raise InvalidArguments(
                f"The arguments of task {self.name!r} are {len(raw):,} bytes of JSON, and the "
                f"limit (max_args_bytes) is {self.options.max_args_bytes:,}. Store the data "
                "elsewhere and pass a reference.",
                task=self.name,
            )
        try:
            self._decoder.decode(raw)
        except _UNREADABLE as error:
            raise self._unreadable(error) from None
        return msgspec.Raw(raw)

    def decode(self, args: str | bytes) -> dict[str, Any]:
        """Return the keyword arguments of the call; raise `InvalidArguments`."""
        if not self._fields and args == "{}":
            return {}
        try:
            decoded = self._decoder.decode(args)
            values: dict[str, Any] = (
                decoded if self.any_arguments else msgspec.structs.asdict(decoded)
            )
        except _UNREADABLE as error:
            raise self._unreadable(error) from None
        # Jobs that SQL enqueued were not checked. A Decimal is written as text.
        if not _READ_SOUND.issuperset(map(type, values.values())):
            text = args if isinstance(args, bytes) else args.encode()
            if b"NaN" in text or b"Infinity" in text:
                for argument, value in values.items():
                    self._check_finite(argument, value, text)
        return values

    def decode_result(self, value: Any, *, job_id: int) -> Any:
        """Return a stored result, which is plain JSON, as what the function's annotation says;
        raise `InvalidResult`."""
        if value is None or self._result_type is Any:
            return value
        try:
            return msgspec.convert(value, self._result_type, str_keys=True)
        except (*_UNREADABLE, TypeError) as error:
            raise InvalidResult(
                f"The result of job {job_id} is not what task {self.name!r} is annotated to "
                f"return, {_show_type(self._result_type)}: {error}. Correct the annotation, or "
                f"read the JSON as it is from the job's history.",
                job_id=job_id,
            ) from error

    def _unreadable(self, error: Exception) -> InvalidArguments:
        found = _PATH.search(str(error)) or _FIELD.search(str(error))
        argument = found[1] if found else None
        where = f"argument {argument!r}" if argument else "the arguments"
        return InvalidArguments(
            f"Task {self.name!r}: {where} is not valid: {error}. {self._describe_arguments()}",
            task=self.name,
            argument=argument,
        )

    def _describe_arguments(self) -> str:
        if self.any_arguments:
            return "It takes any arguments by name, as one JSON object."
        return f"The signature is {self.name}{self._call}."

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._call.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidArguments(
                f"Task {self.name!r}: {error}. {self._describe_arguments()}", task=self.name
            ) from None

    def _not_json(self, kwargs: Mapping[str, Any], error: Exception) -> InvalidArguments:
        for argument, value in kwargs.items():
            try:
                msgspec.json.encode(value)
            except (TypeError, ValueError, OverflowError, RecursionError) as detail:
                reason = (
                    "it contains a lone surrogate, which is not valid text"
                    if isinstance(detail, UnicodeEncodeError)
                    else "it is nested too deeply"
                    if isinstance(detail, RecursionError)
                    else str(detail)
                )
                return InvalidArguments(
                    f"Task {self.name!r}: argument {argument!r} cannot be encoded as JSON: "
                    f"{reason}. Pass plain data: numbers, text, lists, dicts, dates.",
                    task=self.name,
                    argument=argument,
                )
        return InvalidArguments(
            f"Task {self.name!r}: the arguments cannot be encoded as JSON: {error}.", task=self.name
        )

    def _check_finite(self, argument: str, value: Any, raw: bytes) -> None:
        try:
            check_finite(value, raw, what=f"Task {self.name!r}: argument {argument!r}")
        except InvalidInput as error:
            raise InvalidArguments(str(error), task=self.name, argument=argument) from None

    def _check_text(self, argument: str, raw: bytes) -> None:
        try:
            check_json_text(raw, what=f"Argument {argument!r} of task {self.name!r}")
        except InvalidInput as error:
            raise InvalidArguments(str(error), task=self.name, argument=argument) from None

    def _read_signature(self, context_type: type[Any]) -> tuple[str | None, type[Any], Any]:
        try:
            hints = get_type_hints(self.function, include_extras=True)
        except NameError as error:
            raise InvalidInput(
                f"Task {self.name!r}: a type hint cannot be resolved: {error}. "
                "Import the type at run time, not under TYPE_CHECKING."
            ) from None
        context_name = None
        fields: list[Any] = []
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD and self.any_arguments:
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise InvalidInput(
                    f"Task {self.name!r} takes {parameter}. Declare each argument by name, so that "
                    "it can be checked and stored."
                )
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise InvalidInput(
                    f"Task {self.name!r}: {parameter.name!r} is positional-only, but arguments are "
                    "stored by name. Remove the / from its signature."
                )
            hint = hints.get(parameter.name, Any)
            if hint is context_type:
                context_name = parameter.name
            elif parameter.default is parameter.empty:
                fields.append((parameter.name, hint))
            else:
                default = parameter.default
                if isinstance(default, list | dict | set):
                    fields.append(
                        (parameter.name, hint, msgspec.field(default_factory=default.copy))
                    )
                else:
                    fields.append((parameter.name, hint, default))
        try:
            struct = msgspec.defstruct(
                "Arguments", fields, kw_only=True, forbid_unknown_fields=True
            )
            msgspec.json.Decoder(struct)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"Task {self.name!r}: the types of its arguments are not supported by JSON: "
                f"{error}."
            ) from None
        return context_name, struct, result_type(hints.get("return", Any))


def result_type(hint: Any) -> Any:
    """What a result is decoded as: the annotation without outcomes such as `Retry`, which are
    never stored. `Any`: it stays plain JSON."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kept = [one for one in members if not (isinstance(one, type) and issubclass(one, Outcome))]
    if all(one is NoneType for one in kept):
        return Any
    return hint if len(kept) == len(members) else reduce(or_, kept)


def _show_type(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _may_be_unsound(kwargs: Mapping[str, Any]) -> bool:
    """Whether a value may contain a NUL or a NaN. Far cheaper than searching the JSON."""
    for value in kwargs.values():
        kind = type(value)
        if ("\x00" in value) if kind is str else (kind not in _SOUND):
            return True
    return False
