"""The command line, as people and scripts use it, on every backend."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from duetime import Duetime, JobState
from tests import effects
from tests.acceptance.command import SHOP, duetime, enqueue, new_job
from tests.conftest import Backend
from tests.waiting import until


async def dead_jobs(app: Duetime, count: int) -> list[int]:
    """Enqueue jobs that fail for good, and let them."""
    job = msgspec.structs.replace(new_job("shop.fail"), max_attempts=1)
    ids = await enqueue(app, *[job] * count)
    async with app.worker():

        async def all_dead() -> bool:
            return len(await app.jobs.list(state="dead")) == count

        await until(all_dead)
    return ids


def test_db_goes_up_and_down(backend: Backend) -> None:
    empty = duetime(backend.url, "db", "status")
    first = duetime(backend.url, "db", "init", started=True)
    again = duetime(backend.url, "db", "upgrade", "--json")
    status = duetime(backend.url, "db", "status", "--json")
    refused = duetime(backend.url, "db", "downgrade", "--to", "0", given="n\n")
    kept = duetime(backend.url, "db", "status")
    down = duetime(backend.url, "db", "downgrade", "--to", "0", "--yes", "--json")
    gone = duetime(backend.url, "db", "status", "--json")

    assert empty.code == 1
    assert "duetime db init" in empty.out
    assert first.code == 0
    assert "applied 0001_" in first.out
    latest = status.json["latest"]
    assert again.json == {"version": latest, "applied": []}
    assert status.code == 0
    assert status.json["current"]
    assert refused.code == 1
    assert "nothing was changed" in refused.err
    assert "up to date" in kept.out
    assert len(down.json["removed"]) == latest
    assert down.json["version"] == gone.json["version"] == 0


async def test_db_upgrade_replaces_functions_of_another_release(pg_url: str) -> None:
    first = duetime(pg_url, "db", "upgrade", "--json")
    effects.run(pg_url, "update duetime.installation set functions = 'older'")
    behind = duetime(pg_url, "db", "status")
    done = duetime(pg_url, "db", "upgrade")
    current = duetime(pg_url, "db", "status")

    assert first.json == {"version": 1, "applied": ["0001_duetime", "functions"]}
    assert (behind.code, current.code) == (1, 0)
    assert "duetime db upgrade" in behind.out
    assert "applied functions" in done.out


def test_db_prints_and_makes_roles(pg_url: str) -> None:
    before = duetime(pg_url, "db", "roles", "--prefix", "cli")
    duetime(pg_url, "db", "init")
    printed = duetime(pg_url, "db", "roles", "--prefix", "cli")
    made = duetime(pg_url, "db", "roles", "--prefix", "cli", "--apply", "--json")
    roles = effects.run(pg_url, "select rolname from pg_roles where rolname like 'cli%' order by 1")
    effects.run(
        pg_url,
        "drop owned by cli_worker, cli_operator, cli_producer, cli_tracker, cli_reader, cli_access",
    )
    effects.run(pg_url, "drop role cli_worker, cli_operator, cli_producer, cli_tracker, cli_reader")

    assert "create role cli_migrator" in before.out
    assert "grant execute on function duetime.enqueue" in printed.out
    assert made.json["applied"]
    kinds = [name.removeprefix("cli_") for (name,) in roles]
    assert kinds == ["access", "operator", "producer", "reader", "tracker", "worker"]


async def test_jobs_are_listed_by_argument_time_and_error(backend: Backend, app: Duetime) -> None:
    args = [msgspec.Raw(msgspec.json.encode({"order": {"id": number}})) for number in (7, 8)]
    seven, _ = await enqueue(
        app, *(msgspec.structs.replace(new_job("shop.greet"), args=each) for each in args)
    )

    def listed(*options: str) -> list[int]:
        return [job["id"] for job in duetime(backend.url, "--json", "jobs", "list", *options).json]

    assert listed("--arg", "order.id=7") == [seven]
    assert listed("--arg", "order.id=7", "--created-since", "1h") == [seven]
    assert listed("--arg", "order.id=7", "--created-before", "1h") == []
    assert listed("--arg", "order.id=7", "--due-before", "1h") == [seven]
    assert listed("--due-since", "1h") == []
    assert listed("--error-code", "KeyError") == []
    wrong = duetime(backend.url, "jobs", "list", "--arg", "order.id")
    assert (wrong.code, "order.id=7" in wrong.err) == (1, True)


async def test_jobs_are_counted_and_their_errors_grouped(backend: Backend, app: Duetime) -> None:
    empty = duetime(backend.url, "jobs", "errors")
    ids = await dead_jobs(app, 2)
    counted = duetime(backend.url, "jobs", "count")
    as_json = duetime(backend.url, "--json", "jobs", "count", "--state", "pending")
    errors = duetime(backend.url, "jobs", "errors")
    groups = duetime(backend.url, "--json", "jobs", "errors", "--task", "shop.fail")

    assert "No jobs have failed." in empty.out
    assert ["state", "dead", "2"] in [line.split() for line in counted.out.splitlines()]
    assert as_json.json["states"]["dead"] == {"value": 2, "precision": "exact"}
    assert as_json.json["tasks"] == {}
    assert "shop.fail" in errors.out
    assert [group["example"] for group in groups.json] == [ids[1]]


async def test_all_jobs_that_match_are_changed_by_a_bulk_action(
    backend: Backend, app: Duetime
) -> None:
    later = msgspec.structs.replace(new_job("shop.greet"), delay=timedelta(days=1), queue="mail")
    await enqueue(app, later, later)
    refused = duetime(backend.url, "jobs", "cancel-all", "--queue", "mail", given="n\n")
    asked = duetime(backend.url, "--json", "jobs", "cancel-all", "--queue", "mail", "--yes")
    waiting = duetime(backend.url, "jobs", "bulk", str(asked.json["id"]))
    async with app.worker():
        await app.jobs.result(asked.json["id"])
    done = duetime(backend.url, "--json", "jobs", "bulk", str(asked.json["id"]))
    moved = duetime(backend.url, "jobs", "reschedule-all", "1h", "--queue", "mail", "--yes")
    requeued = duetime(backend.url, "jobs", "requeue-all", "--state", "cancelled", "--yes")
    nothing = duetime(backend.url, "jobs", "cancel-all", "--yes")

    assert refused.code == 1
    assert "2 pending" in refused.out
    assert "still being counted" in waiting.out
    assert (done.json["matched"], done.json["done"]) == (2, 2)
    assert "has been requested" in moved.out
    assert requeued.code == 0
    assert "at least one filter" in nothing.err


async def test_secrets_are_shown_on_request_only(backend: Backend, app: Duetime) -> None:
    args = msgspec.Raw(b'{"user": "ann", "password": "hunter2"}')
    [job_id] = await enqueue(app, msgspec.structs.replace(new_job("shop.greet"), args=args))
    listed = duetime(backend.url, "--json", "jobs", "list")
    shown = duetime(backend.url, "jobs", "get", str(job_id))
    revealed = duetime(backend.url, "jobs", "get", str(job_id), "--reveal")

    assert listed.json[0]["args"] == {"user": "ann", "password": "[redacted]"}
    assert "hunter2" not in shown.out
    assert "hunter2" in revealed.out


async def test_commands_of_every_noun_hide_secrets(backend: Backend, app: Duetime) -> None:
    due = await app.now() + timedelta(days=1)
    await app.subjects.put("order:7", due=due, data={"api_key": "hunter2"}, by="ann")
    await app.subjects.complete("order:7", reason="paid with token=hunter2", by="ann")
    await app.schedules.put("nightly", "shop.greet", "0 2 * * *", args={"password": "hunter2"})
    await app.schedules.pause("nightly", reason="the password=hunter2 has leaked", by="ann")
    for words in (
        ("subjects", "get", "order:7"),
        ("subjects", "explain", "order:7"),
        ("schedules", "get", "nightly"),
        ("schedules", "explain", "nightly"),
        ("audit", "list"),
    ):
        for json in ((), ("--json",)):
            answer = duetime(backend.url, *json, *words)
            assert answer.code == 0, (words, answer.err)
            assert "hunter2" not in answer.out, words


async def test_a_finished_job_is_replayed(backend: Backend, app: Duetime) -> None:
    [dead] = await dead_jobs(app, 1)
    replay = duetime(backend.url, "--json", "jobs", "replay", str(dead), "--args", "{}")
    shown = duetime(backend.url, "jobs", "get", str(replay.json["id"]))
    wrong = duetime(backend.url, "jobs", "replay", str(dead), "--args", "{")

    assert replay.json["replay_of"] == dead
    assert f"job {dead}" in shown.out
    assert "Invalid value for '--args': '{' is not JSON" in wrong.error
    nameless = duetime(backend.url, "jobs", "replay", str(dead), "--args", "[1]")
    assert "Invalid value for '--args': '[1]' is not a JSON object" in nameless.error


async def test_jobs_are_listed_newest_first_and_filtered(backend: Backend, app: Duetime) -> None:
    later = msgspec.structs.replace(
        new_job("shop.slow", seconds=1), delay=timedelta(hours=3), queue="mail", key="slow:1"
    )
    [first, second] = await enqueue(app, new_job("shop.send", item_id=7), later)

    table = duetime(backend.url, "jobs", "list")
    mail = duetime(backend.url, "jobs", "list", "--queue", "mail", "--json")
    newest = duetime(backend.url, "--json", "jobs", "list", "--limit", "1")
    more = newest.err.removeprefix("More: ").split()
    page = duetime(backend.url, "--json", "jobs", "list", *more)
    none = duetime(backend.url, "jobs", "list", "--state", "dead")

    heading, row2, row1 = table.out.splitlines()
    assert heading.split() == ["ID", "STATE", "TASK", "QUEUE", "TRIES", "WHEN", "REMARKS"]
    assert row2.split()[:5] == [str(second), "pending", "shop.slow", "mail", "0/3"]
    assert "in 3 h" in row2
    assert "key slow:1" in row2
    assert row1.split()[:5] == [str(first), "pending", "shop.send", "default", "0/3"]
    assert [job["id"] for job in mail.json] == [second]
    assert mail.json[0]["args"] == {"seconds": 1}
    assert [job["id"] for job in newest.json] == [second]
    assert [job["id"] for job in page.json] == [first]
    assert page.err == ""
    assert none.out == "No jobs match.\n"
    assert {answer.code for answer in (table, mail, page, none)} == {0}


async def test_a_job_is_shown_with_its_attempts(backend: Backend, app: Duetime) -> None:
    [job_id] = await dead_jobs(app, 1)

    shown = duetime(backend.url, "jobs", "get", str(job_id))
    plain = duetime(backend.url, "jobs", "get", str(job_id), "--json")

    assert shown.code == 0
    assert f"Job {job_id}: shop.fail, dead" in shown.out
    assert "Attempt 1: dead" in shown.out
    assert "ValueError: the shop is closed" in shown.out
    assert 'raise ValueError("the shop' in shown.out
    [attempt] = plain.json["history"]
    assert attempt["error"] == "the shop\nis closed"
    assert attempt["error_code"] == "ValueError"


async def test_jobs_are_cancelled_and_requeued(backend: Backend, app: Duetime) -> None:
    [job_id] = await enqueue(app, new_job("shop.send", item_id=1))

    cancelled = duetime(backend.url, "jobs", "cancel", str(job_id), "--reason", "not wanted")
    state = (await app.jobs.get(job_id)).state
    mixed = duetime(backend.url, "jobs", "requeue", str(job_id), "4711", "--json")

    assert cancelled.out == f"Job {job_id} is cancelled.\n"
    assert state is JobState.CANCELLED
    assert mixed.code == 1
    assert [(item["id"], item["done"]) for item in mixed.json] == [(job_id, True), (4711, False)]
    assert "There is no job 4711" in mixed.error
    assert (await app.jobs.get(job_id)).state is JobState.PENDING


async def test_retry_makes_a_waiting_job_due(backend: Backend, app: Duetime) -> None:
    later = msgspec.structs.replace(new_job("shop.send", item_id=1), delay=timedelta(days=1))
    [job_id] = await enqueue(app, later)
    [dead] = await dead_jobs(app, 1)

    retried = duetime(backend.url, "jobs", "retry", str(job_id))
    refused = duetime(backend.url, "jobs", "retry", str(dead))

    assert retried.out == f"Job {job_id} is due now.\n"
    run_at = (await app.jobs.get(job_id)).run_at
    assert run_at is not None
    assert run_at <= await app.now()
    assert refused.code == 1
    assert f"duetime jobs requeue {dead}" in refused.error


async def test_jobs_whose_key_is_taken_are_named_and_left(backend: Backend, app: Duetime) -> None:
    job = msgspec.structs.replace(new_job("shop.fail"), key="k")
    [job_id] = await enqueue(app, job)
    await app.jobs.cancel(job_id)
    [holder] = await enqueue(app, job)
    one = duetime(backend.url, "jobs", "requeue", str(job_id))
    all_of_them = ("jobs", "requeue", "--state", "cancelled", "--yes")
    many = duetime(backend.url, *all_of_them)
    told = duetime(backend.url, *all_of_them, "--json")

    assert one.code == 1
    assert f"Job {holder} of task 'shop.fail' already holds the key 'k'" in one.error
    left = f"Job {job_id} was not requeued, because job {holder} holds its key.\n"
    assert many.out == f"{left}0 jobs requeued.\n"
    assert told.json == {"requeued": 0, "conflicts": {str(job_id): holder}}


async def test_many_are_requeued_only_when_confirmed(backend: Backend, app: Duetime) -> None:
    await dead_jobs(app, 3)
    requeue = ("jobs", "requeue", "--state", "dead", "--task", "shop.fail")

    refused = duetime(backend.url, *requeue, given="n\n")
    unanswered = duetime(backend.url, *requeue)
    still = len(await app.jobs.list(state="dead"))
    done = duetime(backend.url, *requeue, given="y\n")
    nothing = duetime(backend.url, *requeue, "--yes", "--json")

    assert "Requeue 3 jobs of task shop.fail, dead?" in refused.err
    assert refused.code == unanswered.code == 1
    assert still == 3
    assert done.out == "3 jobs requeued.\n"
    assert nothing.json == {"requeued": 0, "conflicts": {}}
    assert len(await app.jobs.list(state="pending")) == 3


async def test_a_job_is_explained(backend: Backend, app: Duetime) -> None:
    [job_id] = await enqueue(app, new_job("shop.send", item_id=1))

    told = duetime(backend.url, "jobs", "explain", str(job_id))
    plain = duetime(backend.url, "jobs", "explain", str(job_id), "--json")

    assert told.out.startswith(f"Job {job_id} waits: no live worker serves the queue 'default'")
    chain = [line[2:] for line in told.out.splitlines()[1:7]]
    assert [line[:11].rstrip() for line in chain] == [
        "passed", "passed", "failed", "not reached", "not reached", "not reached"
    ]  # fmt: skip
    assert chain[1] == (
        "passed       Is its queue open?                   Its queue 'default' is not paused."
    )
    assert chain[3] == "not reached  Does such a worker know its task?"
    assert [check["passed"] for check in plain.json["checks"]] == [True, True, False, *[None] * 3]
    assert plain.json["code"] == "no_worker"


async def test_a_queue_is_explained(backend: Backend, app: Duetime) -> None:
    await app.queues.pause("mail", by="ann", reason="holiday")

    told = duetime(backend.url, "queues", "explain", "mail")
    plain = duetime(backend.url, "queues", "explain", "mail", "--json")
    missing = duetime(backend.url, "queues", "explain", "post")

    assert told.out.startswith("The queue 'mail' starts no jobs: it was paused at ")
    assert plain.json["code"] == "paused"
    assert missing.code == 1


async def test_queues_are_paused_limited_and_listed(backend: Backend, app: Duetime) -> None:
    await enqueue(app, new_job("shop.send", item_id=1))
    name = "default"

    paused = duetime(backend.url, "queues", "pause", name, "--reason", "holiday", "--by", "ann")
    limited = duetime(
        backend.url, "queues", "limit", name, "--running", "2", "--rate", "9", "--period", "1m"
    )
    table = duetime(backend.url, "queues", "list")
    plain = duetime(backend.url, "queues", "list", "--json")
    resumed = duetime(backend.url, "queues", "resume", name)
    again = duetime(backend.url, "queues", "resume", name)
    lifted = duetime(backend.url, "queues", "limit", name, "--none")

    assert paused.out == "Queue default is paused by ann: 1 job waiting.\n"
    assert limited.out == "Queue default: at most 2 running, 9 per 1m.\n"
    assert "by ann (holiday); at most 2 running, 9 per 1m" in table.out
    [queue] = plain.json
    assert (queue["name"], queue["due"], queue["pause_reason"]) == (name, 1, "holiday")
    assert resumed.out == "Queue default is resumed; 1 job due.\n"
    assert again.out == "Queue default was not paused. Nothing changed.\n"
    assert lifted.out == "Queue default: no limits.\n"
    info = await app.queues.get(name)
    assert info.paused_at is None
    assert not info.limits.any


async def test_workers_are_listed(backend: Backend, app: Duetime) -> None:
    none = duetime(backend.url, "workers", "list")
    async with app.worker(name="ann", queues=["a", "b"], concurrency=3):
        table = duetime(backend.url, "workers", "list")
        plain = duetime(backend.url, "workers", "list", "--json")

    assert "No worker is registered" in none.out
    assert table.out.splitlines()[1].split()[:5] == ["ann", "a,b", "0", "of", "3"]
    assert plain.json[0]["queues"] == ["a", "b"]
    assert "shop.send" in plain.json[0]["tasks"]


async def test_the_app_may_be_named_anywhere(backend: Backend, app: Duetime) -> None:
    named = ("--app", SHOP, "--database", backend.url)
    before = duetime(None, *named, "jobs", "list", started=True)
    after = duetime(None, "jobs", "list", *named, started=True)
    environment = duetime(backend.url, "jobs", "list", started=True, DUETIME_APP=SHOP)

    assert {answer.out for answer in (before, after, environment)} == {"No jobs.\n"}
