"""A task's arguments: written as JSON, checked against its signature, and read back."""

from __future__ import annotations

import enum
import json
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.domain.jobs.retry import Constant
from duetime.domain.jobs.task import TaskDefinition, TaskOptions
from duetime.errors import InvalidArguments, InvalidInput


class Ctx:
    """Stands for the engine's context."""


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    street: str
    number: int = 1


class Order(msgspec.Struct):
    id: uuid.UUID
    ship_to: Address


def define(function: Callable[..., Any], *, max_args_bytes: int = 1024) -> TaskDefinition:
    options = TaskOptions(
        queue="default",
        priority=5,
        retry=Constant("1s"),
        retry_on=(Exception,),
        max_attempts=3,
        timeout=None,
        expires=None,
        keep_result=True,
        max_args_bytes=max_args_bytes,
    )
    return TaskDefinition(function, name="shop.task", options=options, context_type=Ctx)


def pass_through(task: TaskDefinition, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The call's arguments as the handler gets them."""
    return task.decode(bytes(task.encode(args, kwargs)).decode())


def anything(value: Any) -> None: ...


def typed(n: int, text: str = "x", flags: list[bool] | None = None) -> None: ...


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_data_comes_back_as_it_went(value: Any) -> None:
    task = define(anything, max_args_bytes=10**6)

    assert pass_through(task, value=value) == {"value": value}


@given(st.text(min_size=1))
def test_text_is_stored_or_refused_never_broken(text: str) -> None:
    task = define(anything, max_args_bytes=10**6)
    try:
        raw = bytes(task.encode((), {"value": text}))
    except InvalidArguments:
        assert "\x00" in text or any(0xD800 <= ord(character) <= 0xDFFF for character in text)
        return
    assert json.loads(raw) == {"value": text}
    assert "\x00" not in text


def test_types_come_back_as_the_signature_has_them() -> None:
    def handler(
        order: Order,
        at: datetime,
        day: date,
        wait: timedelta,
        price: Decimal,
        colour: Colour,
        blob: bytes,
        tags: set[str],
        pair: tuple[int, str],
        mode: Literal["fast", "slow"],
        age: Annotated[int, msgspec.Meta(ge=0)],
    ) -> None: ...

    values: dict[str, Any] = {
        "order": Order(uuid.uuid4(), Address("Main", 7)),
        "at": datetime(2026, 3, 8, 9, 30, tzinfo=UTC),
        "day": date(2026, 3, 8),
        "wait": timedelta(minutes=90),
        "price": Decimal("19.90"),
        "colour": Colour.BLUE,
        "blob": b"\x00\xff",
        "tags": {"a", "b"},
        "pair": (1, "x"),
        "mode": "slow",
        "age": 3,
    }

    assert pass_through(define(handler), **values) == values


class TestTheCall:
    def test_positional_arguments_are_stored_by_name(self) -> None:
        assert json.loads(bytes(define(typed).encode((1, "y"), {}))) == {"n": 1, "text": "y"}

    def test_defaults_are_those_of_the_handler_that_runs(self) -> None:
        task = define(typed)

        assert json.loads(bytes(task.encode((), {"n": 1}))) == {"n": 1}
        assert pass_through(task, n=1) == {"n": 1, "text": "x", "flags": None}

    def test_mutable_defaults_are_not_shared(self) -> None:
        def handler(items: list[int] = []) -> None: ...  # noqa: B006

        task = define(handler)
        pass_through(task)["items"].append(1)

        assert pass_through(task) == {"items": []}

    def test_the_context_is_found_by_its_annotation_wherever_it_stands(self) -> None:
        def handler(n: int, how: Ctx, m: int) -> None: ...

        task = define(handler)

        assert task.context_name == "how"
        assert task.arguments == ("n", "m")
        assert pass_through(task, 1, 2) == {"n": 1, "m": 2}

    def test_the_context_cannot_be_given(self) -> None:
        def handler(ctx: Ctx) -> None: ...

        with pytest.raises(InvalidArguments, match="ctx") as caught:
            define(handler).encode((), {"ctx": 1})
        assert caught.value.argument == "ctx"

    def test_no_arguments(self) -> None:
        def handler() -> None: ...

        assert bytes(define(handler).encode((), {})) == b"{}"
        assert pass_through(define(handler)) == {}

    def test_without_annotations_anything_goes(self) -> None:
        def handler(a, b=2): ...  # type: ignore[no-untyped-def]

        assert pass_through(define(handler), a=[1]) == {"a": [1], "b": 2}


class TestWrongCalls:
    @pytest.mark.parametrize(
        ("args", "kwargs", "argument", "reason"),
        [
            ((), {"n": "7"}, "n", "Expected `int`, got `str`"),
            ((), {"n": 1.5}, "n", "Expected `int`"),
            ((), {"n": None}, "n", "Expected `int`, got `null`"),
            ((), {"n": 1, "flags": [True, "no"]}, "flags", r"Expected `bool`.*\$\.flags\[1\]"),
            ((), {}, "n", "missing required field `n`"),
            ((), {"n": 1, "m": 2}, "m", "unknown field `m`"),
            ((1, "x", None, 4), {}, None, "too many positional arguments"),
            ((1,), {"n": 1}, None, "multiple values for argument 'n'"),
            ((1,), {"m": 1}, None, "unexpected keyword argument 'm'"),
        ],
    )
    def test_the_message_names_the_argument_and_the_signature(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], argument: str | None, reason: str
    ) -> None:
        with pytest.raises(InvalidArguments, match=reason) as caught:
            define(typed).encode(args, kwargs)

        assert caught.value.argument == argument
        assert caught.value.task == "shop.task"
        assert "The signature is shop.task(n: 'int', text: 'str' = 'x'" in str(caught.value)

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (object(), "cannot be encoded as JSON.*object is unsupported"),
            (lambda: None, "cannot be encoded as JSON"),
            ({(1, 2): 3}, "cannot be encoded as JSON.*keys"),
            ("lone \ud800", "lone surrogate"),
            ({"\udfff": 1}, "lone surrogate"),
            ("nul \x00", "NUL character"),
            (["deep", {"nul \x00": 1}], "NUL character"),
            (Address("nul \x00"), "NUL character"),
            (math.nan, "is nan, which JSON does not support"),
            ([1.0, {"x": math.inf}], "holds inf, which JSON does not support"),
            ({math.nan: 1}, "holds nan, which JSON does not support"),
            (Decimal("NaN"), "is NaN, which JSON does not support"),
            ([Decimal("-Infinity")], "holds -Infinity, which JSON does not support"),
            (Order(uuid.uuid4(), Address(-math.inf)), "holds -inf"),  # type: ignore[arg-type]
        ],
    )
    def test_what_cannot_be_stored(self, value: Any, reason: str) -> None:
        with pytest.raises(InvalidArguments, match=f"(?s){reason}") as caught:
            define(anything).encode((), {"value": value})

        assert caught.value.argument == "value"
        assert "'value'" in str(caught.value)

    @pytest.mark.parametrize("text", ["NaN", "-Infinity", "sNaN"])
    def test_sql_cannot_pass_a_decimal_that_is_no_number(self, text: str) -> None:
        def pay(amount: Decimal, note: str) -> None: ...

        args = msgspec.json.encode({"amount": text, "note": "NaN"})

        with pytest.raises(InvalidArguments, match=r"argument 'amount' is .*, which JSON"):
            define(pay).decode(args.decode())
        assert define(pay).decode('{"amount": "1", "note": "NaN"}')["note"] == "NaN"

    def test_nesting_without_end(self) -> None:
        nested: list[Any] = [None]
        for _ in range(100_000):
            nested = [nested]

        with pytest.raises(InvalidArguments, match="nested too deeply"):
            define(anything).encode((), {"value": nested})

    @pytest.mark.parametrize("depth", [200, 400, 600, 800, 900, 940, 950, 960, 970, 980, 990])
    def test_nesting_is_stored_or_refused(self, depth: int) -> None:
        nested: list[Any] = [None]
        for _ in range(depth):
            nested = [nested]
        task = define(anything, max_args_bytes=10**6)
        try:
            raw = task.encode((), {"value": nested})
        except InvalidArguments:
            return
        assert bytes(raw).count(b"[") == depth + 1

    def test_the_size_limit_is_exact(self) -> None:
        task = define(anything, max_args_bytes=100)
        fits = "x" * (100 - len('{"value":""}'))

        assert len(bytes(task.encode((), {"value": fits}))) == 100
        with pytest.raises(
            InvalidArguments, match=r"are 101 bytes of JSON, and the limit .* is 100"
        ):
            task.encode((), {"value": fits + "x"})

    @pytest.mark.parametrize("stored", ['{"n": "7"}', "{", "[]", '{"n": 1, "gone": 2}', "{}"])
    def test_what_an_older_deploy_stored_is_checked_again(self, stored: str) -> None:
        with pytest.raises(InvalidArguments, match=r"shop\.task"):
            define(typed).decode(stored)


class TestSignatures:
    def test_star_arguments_are_refused(self) -> None:
        def positional(*items: int) -> None: ...

        def named(**items: int) -> None: ...

        for handler in (positional, named):
            with pytest.raises(
                InvalidInput, match=r"takes \*+items.*Declare each argument by name"
            ):
                define(handler)

    def test_positional_only_arguments_are_refused(self) -> None:
        def handler(n: int, /) -> None: ...

        with pytest.raises(InvalidInput, match="'n' is positional-only"):
            define(handler)

    def test_generators_are_refused(self) -> None:
        def handler() -> Any:
            yield 1

        async def async_handler() -> Any:
            yield 1

        for generator in (handler, async_handler):
            with pytest.raises(InvalidInput, match="is a generator"):
                define(generator)

    def test_a_hint_that_cannot_be_resolved(self) -> None:
        def handler(n: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821

        with pytest.raises(InvalidInput, match=r"Missing.*Import the type at run time"):
            define(handler)

    def test_a_hint_that_json_cannot_tell_apart(self) -> None:
        def handler(n: Address | Order) -> None: ...

        with pytest.raises(InvalidInput, match="are not supported by JSON"):
            define(handler)

    def test_async_is_seen(self) -> None:
        async def handler() -> None: ...

        assert define(handler).is_async
        assert not define(typed).is_async
