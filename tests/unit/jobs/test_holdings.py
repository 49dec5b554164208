"""What a worker holds, and what it has yet to record."""

from __future__ import annotations

from datetime import UTC, datetime

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.engine.holdings import Holdings

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def job(number: int, token: int = 1) -> ClaimedJob:
    return ClaimedJob(number, token, "noop", "default", 5, "{}", 1, 3, NOON, NOON)


def finish(job: ClaimedJob) -> FinishedJob:
    return FinishedJob(job, AttemptOutcome.COMPLETED, 0, 1)


def test_a_token_is_closed_with_its_last_job() -> None:
    holdings = Holdings()
    first, second = job(1), job(2)
    holdings.add([first, second])
    assert holdings.drop(first)
    assert (holdings.closed, list(holdings)) == ([], [second])
    assert holdings.drop(second)

    assert (holdings.closed, list(holdings)) == ([1], [])


def test_a_job_is_dropped_once_and_under_its_own_token_only() -> None:
    holdings = Holdings()
    holdings.add([job(1, token=7), job(2, token=7)])

    assert not holdings.drop(job(1, token=6))
    assert holdings.drop(job(1, token=7))
    assert not holdings.drop(job(1, token=7))
    assert not holdings.holds(job(1, token=7))
    assert holdings.holds(job(2, token=7))


def test_what_could_not_be_recorded_comes_first_next_time() -> None:
    holdings = Holdings()
    early, late = job(1, token=1), job(2, token=2)
    holdings.add([early, late])
    holdings.drop(early)
    holdings.finished.append(finish(early))
    taken = holdings.take_finished()
    holdings.drop(late)
    holdings.finished.append(finish(late))
    holdings.put_back(*taken)
    finished, closed = holdings.take_finished()

    assert [one.job for one in finished] == [early, late]
    assert closed == [1, 2]
    assert holdings.take_finished() == ([], [])


def test_tokens_that_are_yet_to_be_recorded_are_known() -> None:
    """Else their jobs would be taken for those of a claim whose answer was lost."""
    holdings = Holdings()
    holdings.add([job(1, token=1), job(2, token=2), job(3, token=2), job(4, token=3)])
    holdings.drop(job(1, token=1))
    holdings.drop(job(2, token=2))
    holdings.finished.append(finish(job(2, token=2)))

    assert set(holdings.tokens) == {1, 2, 3}
