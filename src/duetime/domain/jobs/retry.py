"""When a failed job is retried. A policy is a pure function of the attempt and the error."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Protocol

from duetime.domain.duration import Duration, parse_duration
from duetime.domain.jobs.job import DEFAULT_MAX_ATTEMPTS
from duetime.errors import InvalidInput

MAX_ATTEMPTS = 10_000


class RetryPolicy(Protocol):
    """How many attempts a job has in all, and how long to wait after each failed one."""

    max_attempts: int

    def delay(self, attempt: int, error: BaseException | None, random: Random) -> timedelta:
        """Return the wait after the failed `attempt`, which counts from 1."""


class Exponential:
    """Wait `base * factor ** (attempt - 1)`, at most `max`, plus or minus `jitter` (a share).

    >>> policy = Exponential("60s", max_attempts=4)
    >>> [policy.delay(n, None, Random(0)).total_seconds() for n in (1, 2, 3)]
    [60.0, 120.0, 240.0]
    """

    def __init__(
        self,
        base: Duration = "15s",
        *,
        factor: float = 2.0,
        max: Duration = "1d",  # noqa: A002
        jitter: float = 0.0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> None:
        self.base = parse_duration(base, name="base")
        self.max = parse_duration(max, name="max")
        if not 1 <= factor <= 100:
            raise InvalidInput(f"factor must be between 1 and 100, got {factor!r}.")
        if not 0 <= jitter <= 1:
            raise InvalidInput(f"jitter must be a fraction between 0 and 1, got {jitter!r}.")
        self.factor = factor
        self.jitter = jitter
        self.max_attempts = check_max_attempts(max_attempts)

    def delay(self, attempt: int, error: BaseException | None, random: Random) -> timedelta:
        try:
            wait = min(self.base * self.factor ** (attempt - 1), self.max)
        except OverflowError:
            wait = self.max
        return wait * (1 + self.jitter * random.uniform(-1, 1)) if self.jitter else wait


class Constant:
    """Wait the same time after each failed attempt."""

    def __init__(self, wait: Duration, *, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> None:
        self.wait = parse_duration(wait, name="wait")
        self.max_attempts = check_max_attempts(max_attempts)

    def delay(self, attempt: int, error: BaseException | None, random: Random) -> timedelta:
        return self.wait


class Delays:
    """A table of waits: one before each attempt, the first included.

    `Delays("0s", "30s", "5m")` is three attempts: at once, 30 s after the first failed,
    5 min after the second failed; then dead.
    """

    def __init__(self, *delays: Duration) -> None:
        if not delays:
            raise InvalidInput("Delays requires at least one delay, such as Delays('0s', '30s').")
        self.delays = tuple(parse_duration(delay, name="delay") for delay in delays)
        self.max_attempts = check_max_attempts(len(delays))

    def delay(self, attempt: int, error: BaseException | None, random: Random) -> timedelta:
        return self.delays[min(attempt, len(self.delays) - 1)]


class Custom:
    """Wait as long as the function `(attempt, error) -> duration` returns."""

    def __init__(
        self,
        function: Callable[[int, BaseException | None], Duration],
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> None:
        if not callable(function):
            raise InvalidInput(
                f"Custom takes a function (attempt, error) -> delay, got {function!r}."
            )
        self.function = function
        self.max_attempts = check_max_attempts(max_attempts)

    def delay(self, attempt: int, error: BaseException | None, random: Random) -> timedelta:
        return parse_duration(self.function(attempt, error), name="the custom retry's delay")


def check_max_attempts(value: int, *, name: str = "max_attempts") -> int:
    """Return `value` if it is a number of attempts that a job can have."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ATTEMPTS:
        raise InvalidInput(f"{name} must be between 1 and {MAX_ATTEMPTS:,}, got {value!r}.")
    return value


def check_policy(value: RetryPolicy) -> RetryPolicy:
    """Return `value` if it is a retry policy; raise `InvalidInput` if not."""
    if not hasattr(value, "max_attempts") or not callable(getattr(value, "delay", None)):
        raise InvalidInput(
            f"retry= must be a retry policy, such as Exponential('60s'), got {value!r}."
        )
    return value


def check_errors(value: object) -> tuple[type[BaseException], ...]:
    """Return the classes of errors that are retried."""
    kinds = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise InvalidInput(
            f"retry_on= must be an exception class or a tuple of exception classes, got {value!r}."
        )
    return kinds
