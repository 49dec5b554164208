"""Only whoever holds a run may write to it, and what is written twice counts once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from duetime.domain.flows.flow import (
    LoadedRun,
    NewRecord,
    StepInfo,
    SuspendAnswer,
    Suspension,
)
from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, JobState
from duetime.domain.reasons import Reason
from duetime.errors import FlowEnded
from duetime.storage.flows.runs import FlowStatements
from duetime.storage.store import Store
from tests.conformance.conftest import Clock, MakeHand, seconds
from tests.conformance.hand import Hand, ended, enqueue, get, ids
from tests.operating import cancel

WAIT = 60_000_000


def call(job: ClaimedJob, seq: int = 1, state: str = "completed", **more: Any) -> NewRecord:
    """A record of a call that a run made."""
    output = more.pop("output", None)
    return NewRecord(
        run=job.id,
        token=job.token,
        seq=seq,
        kind=more.pop("kind", "step"),
        name=more.pop("name", "pay"),
        state=state,
        attempt=1,
        output=None if output is None else msgspec.Raw(msgspec.json.encode(output)),
        started=1000,
        finished=2000 if state in ("completed", "failed") else None,
        **more,
    )


def wait(job: ClaimedJob, name: str = "go", seq: int = 1, **more: Any) -> NewRecord:
    return call(job, seq, "waiting", kind="signal", name=name, **more)


async def record(store: Store, *records: NewRecord) -> list[bool]:
    if len(records) == 1 and records[0].is_plain:
        is_accepted = await store.record_step(records[0])
        if is_accepted is not None:
            return [is_accepted]
    accepted: list[bool] = await store.transact(FlowStatements(store.dialect).record(records))
    return accepted


async def suspend(store: Store, *jobs: ClaimedJob, waits: tuple[int, ...] = (1,)) -> list[str]:
    pauses = [
        Suspension(run=job.id, token=job.token, started=1000, finished=2000, waits=[*waits])
        for job in jobs
    ]
    answers: list[SuspendAnswer] = await store.transact(
        FlowStatements(store.dialect).suspend(pauses)
    )
    return [*answers]


async def send(store: Store, run: int, name: str = "go", data: Any = None) -> bool:
    statements = FlowStatements(store.dialect).signal(run, name, data, key=None, by="test")
    sent: bool = await store.transact(statements)
    return sent


async def load(store: Store, run: int) -> LoadedRun:
    [loaded] = await store.transact(FlowStatements(store.dialect).load([run]), reads=True)
    assert isinstance(loaded, LoadedRun)
    return loaded


async def steps(store: Store, run: int) -> list[StepInfo]:
    found: list[StepInfo] = await store.transact(
        FlowStatements(store.dialect).steps(run), reads=True
    )
    return found


async def lose_lease(store: Store, clock: Clock) -> None:
    await clock.advance("31s")
    await store.rescue()


async def test_a_worker_without_its_lease_records_nothing(
    store: Store, clock: Clock, hand: Hand
) -> None:
    await enqueue(store, flow=True)
    job = await hand.claim_one()
    await record(store, call(job, 1, output="mine"))
    await lose_lease(store, clock)

    assert await record(store, call(job, 1, output="late"), call(job, 2)) == [False, False]
    [step] = await steps(store, job.id)
    assert step.output == "mine"


@pytest.mark.parametrize("how", ["lost its lease", "gave it back"])
async def test_a_worker_whose_run_is_elsewhere_neither_records_nor_suspends(
    store: Store, clock: Clock, make_hand: MakeHand, how: str
) -> None:
    run = await enqueue(store, flow=True)
    hand = await make_hand(name="slow")
    slow = await hand.claim_one()
    if how == "gave it back":
        # No attempt has ended: only the token tells the two apart.
        await hand.release(slow)
    else:
        await lose_lease(store, clock)
    quick = await (await make_hand(name="quick")).claim_one()
    assert await record(store, call(quick, 1, output="quick")) == [True]

    assert await record(store, call(slow, 1, output="slow"), call(quick, 2)) == [False, True]
    assert await record(store, call(slow, 1, output="slow")) == [False]
    assert await suspend(store, slow) == ["lost"]
    assert [step.output for step in await steps(store, run)] == ["quick", None]
    assert (await get(store, run)).state is JobState.RUNNING


async def test_a_worker_without_its_lease_takes_no_signal(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    run = await enqueue(store, flow=True)
    job = await (await make_hand(name="slow")).claim_one()
    await send(store, run, data="kept")
    [signal] = (await load(store, run)).signals
    await lose_lease(store, clock)

    taken = call(job, kind="signal", name="go", signal=signal.id)
    assert await record(store, taken) == [False]
    await (await make_hand(name="quick")).claim_one()
    assert await record(store, taken) == [False]
    assert (await load(store, run)).signals == [signal]


async def test_an_attempt_that_ended_takes_no_signal_though_its_claim_is_open(
    store: Store, clock: Clock, hand: Hand
) -> None:
    """It timed out, and its handler still runs: the claim is there for the other job."""
    run = await enqueue(store, flow=True)
    await enqueue(store, flow=True)
    job, _other = await hand.claim()
    await send(store, run, data="kept")
    [signal] = (await load(store, run)).signals
    await hand.end(ended(job, AttemptOutcome.RETRIED, again_after=timedelta(0)))

    taken = call(job, kind="signal", name="go", signal=signal.id)
    assert await record(store, taken, call(job, 2)) == [False, False]
    assert await steps(store, run) == []
    assert (await load(store, run)).signals == [signal]


async def test_a_suspended_run_is_not_written_to_though_its_claim_is_open(
    store: Store, clock: Clock, hand: Hand
) -> None:
    run = await enqueue(store, flow=True)
    await enqueue(store, flow=True)
    job, _other = await hand.claim()
    await record(store, wait(job))
    assert await suspend(store, job) == ["suspended"]

    assert await record(store, call(job, 2)) == [False]
    assert len(await steps(store, run)) == 1


async def test_what_is_recorded_twice_is_recorded_once(
    store: Store, clock: Clock, hand: Hand
) -> None:
    """The answer to the first was lost."""
    run = await enqueue(store, flow=True)
    job = await hand.claim_one()
    await send(store, run, data=1)
    await send(store, run, data=2)
    [first, second] = (await load(store, run)).signals
    records = [call(job, 1, output=1), call(job, 2, kind="signal", name="go", signal=first.id)]

    assert await record(store, *records) == [True, True]
    before = await steps(store, run)
    assert await record(store, *records) == [True, True]
    assert await steps(store, run) == before
    assert (await load(store, run)).signals == [second]


@pytest.mark.parametrize("then", ["nothing", "signal", "claim"])
async def test_what_is_suspended_twice_is_suspended_once(
    store: Store, clock: Clock, make_hand: MakeHand, then: str
) -> None:
    """The answer to the first was lost. The second finds that the run is not its own any more,
    also if what the run waits for has happened meanwhile."""
    run = await enqueue(store, flow=True)
    await enqueue(store, flow=True)
    hand, other = await make_hand(name="one"), await make_hand(name="two")
    job, _open = await hand.claim()
    await record(store, wait(job, wait=WAIT))
    assert await suspend(store, job) == ["suspended"]
    if then != "nothing":
        await send(store, run)
    if then == "claim":
        assert ids(await other.claim()) == [run]
    before = await get(store, run)

    assert await suspend(store, job) == ["lost"]
    assert await get(store, run) == before


async def test_a_run_does_not_suspend_past_what_it_waits_for(
    store: Store, clock: Clock, hand: Hand
) -> None:
    run = await enqueue(store, flow=True)
    job = await hand.claim_one()
    await record(store, wait(job))
    await send(store, run)

    assert await suspend(store, job) == ["ready"]
    assert (await get(store, run)).state is JobState.RUNNING


async def test_a_run_does_not_suspend_past_a_child_that_ended(
    store: Store, clock: Clock, hand: Hand
) -> None:
    await enqueue(store, flow=True)
    job = await hand.claim_one()
    await record(store, call(job, 1, "waiting", kind="child"), wait(job, seq=2))
    await record(store, call(job, 1, kind="child"))

    assert await suspend(store, job, waits=(1, 2)) == ["ready"]
    # What it does not wait for any more holds it up no more.
    assert await suspend(store, job, waits=(2,)) == ["suspended"]


async def test_a_run_waits_for_nothing_that_its_function_has_abandoned(
    store: Store, clock: Clock, hand: Hand
) -> None:
    """A task group has cut off the branch that made the first two calls."""
    run = await enqueue(store, flow=True)
    job = await hand.claim_one()
    await record(
        store,
        call(job, 1, "retrying", wait=WAIT),
        wait(job, "abandoned", seq=2, wait=WAIT),
        wait(job, seq=3, wait=3 * WAIT),
    )
    await send(store, run, "abandoned")

    assert await suspend(store, job, waits=(3,)) == ["suspended"]
    assert (await get(store, run)).run_at == clock.now + seconds(180)


async def test_a_run_whose_function_is_tried_again_goes_on_after_the_pause(
    store: Store, clock: Clock, hand: Hand
) -> None:
    run = await enqueue(store, flow=True)
    job = await hand.claim_one()
    await record(store, call(job, 0, "retrying", kind="error", wait=WAIT))

    assert await suspend(store, job, waits=()) == ["suspended"]
    assert (await get(store, run)).run_at == clock.now + seconds(60)


async def test_what_a_run_recorded_is_loaded_in_the_order_in_which_it_ended(
    store: Store, clock: Clock, hand: Hand
) -> None:
    run = await enqueue(store, flow=True)
    job = await hand.claim_one()
    calls = [call(job, 1), call(job, 2), wait(job, seq=3), call(job, 4), call(job, 5)]
    for one, finished in zip(calls, [3000, 1000, None, 2000, 2000], strict=True):
        one.finished = finished
    await record(store, *calls)

    assert [*(await load(store, run)).steps] == [2, 4, 5, 1, 3]


async def test_a_signal_of_another_name_does_not_wake_a_run(
    store: Store, clock: Clock, hand: Hand
) -> None:
    run = await enqueue(store, flow=True)
    job = await hand.claim_one()
    await record(store, wait(job, wait=WAIT))
    await send(store, run, "other")

    assert await suspend(store, job) == ["suspended"]
    await send(store, run, "other")
    assert (await get(store, run)).run_at == clock.after("60s")


async def test_a_run_that_is_cancelled_does_not_suspend(
    store: Store, clock: Clock, hand: Hand
) -> None:
    run = await enqueue(store, flow=True)
    job = await hand.claim_one()
    await record(store, wait(job))
    await cancel(store, run, reason=Reason.of("text", text="no longer wanted"))

    assert await suspend(store, job) == ["ready"]


async def test_a_suspended_run_is_cancelled_at_once_and_takes_no_signals(
    store: Store, clock: Clock, hand: Hand
) -> None:
    run = await enqueue(store, flow=True)
    job = await hand.claim_one()
    await record(store, wait(job))
    await suspend(store, job)
    await cancel(store, run, reason=Reason.of("text", text="no longer wanted"))

    assert (await get(store, run)).state is JobState.CANCELLED
    with pytest.raises(FlowEnded):
        await send(store, run)


async def test_runs_are_suspended_together_and_each_has_its_own_answer(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    """One waits, for one a signal is there, one was lost."""
    lost_run = await enqueue(store, flow=True)
    gone = await (await make_hand(name="gone", lease="10s")).claim_one()
    await clock.advance("11s")
    await store.rescue()
    hand = await make_hand(name="there")
    [_again] = await hand.claim()
    for _ in range(2):
        await enqueue(store, flow=True)
    waits, ready = await hand.claim()
    await record(store, wait(waits), wait(ready))
    await send(store, ready.id)

    assert gone.id == lost_run
    assert await suspend(store, waits, ready, gone) == ["suspended", "ready", "lost"]


async def test_what_a_run_recorded_is_pruned_with_it_and_not_before(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    retention = {AttemptOutcome.COMPLETED: timedelta(days=1)}
    run = await enqueue(store, flow=True)
    job = await (await make_hand()).claim_one()
    await send(store, run, "other")
    await record(store, call(job, 1), wait(job, seq=2, wait=5 * 86_400_000_000))
    await suspend(store, job, waits=(2,))
    await clock.advance("3d")
    await store.rescue()
    assert await store.prune(retention, after=0, batch=100) == (0, 0)
    assert len(await steps(store, run)) == 2

    await send(store, run)
    later = await make_hand()
    await later.finish(await later.claim_one())
    await clock.advance("12h")
    assert await store.prune(retention, after=0, batch=100) == (0, 0)
    assert len(await steps(store, run)) == 2

    await clock.advance("1d")
    assert await store.prune(retention, after=0, batch=100) == (1, 0)
    assert await load(store, run) == LoadedRun({}, [])


async def test_a_run_that_is_lost_keeps_what_it_recorded(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    run = await enqueue(store, flow=True)
    first = await (await make_hand(name="one")).claim_one()
    await record(store, call(first, 1), wait(first, seq=2, wait=WAIT))
    until = (await steps(store, run))[1].until
    await lose_lease(store, clock)
    second = await (await make_hand(name="two")).claim_one()

    # It replays, and still waits as long as it did before.
    await record(store, wait(second, seq=2))
    assert [step.state for step in await steps(store, run)] == ["completed", "waiting"]
    assert (await steps(store, run))[1].until == until == clock.before("31s") + seconds(60)
