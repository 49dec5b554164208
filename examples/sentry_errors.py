"""Report errors to Sentry, with their job: `SENTRY_DSN=… python examples/sentry_errors.py`."""

import asyncio
import os

import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger

from duetime import CallNext, Constant, Context, Duetime, DuetimeError

app = Duetime()  # DUETIME_DATABASE, or else sqlite:///duetime.db


@app.on_startup
def start_sentry() -> None:
    sentry_sdk.init(dsn=os.environ.get("SENTRY_DSN"))
    # By default Sentry also reports log records of errors. The hook below knows more.
    ignore_logger("duetime.events")


@app.on_shutdown
def flush_sentry() -> None:
    sentry_sdk.flush(timeout=5)


@app.middleware
async def isolate(ctx: Context, call_next: CallNext) -> object:
    # Whatever the handler adds (breadcrumbs, tags) stays with its job: the context variables of
    # a job, in which Sentry keeps its scopes, are not seen by other jobs.
    scope = sentry_sdk.get_isolation_scope().fork()
    describe(scope, ctx)
    sentry_sdk.Scope.set_isolation_scope(scope)
    return await call_next()


@app.on_error
def report(ctx: Context, error: BaseException, will_retry: bool) -> None:
    with sentry_sdk.new_scope() as scope:
        describe(scope, ctx)
        scope.set_tag("will_retry", will_retry)
        scope.set_level("warning" if will_retry else "error")
        sentry_sdk.capture_exception(error)


def describe(scope: sentry_sdk.Scope, ctx: Context) -> None:
    scope.set_tag("job_id", ctx.id)
    scope.set_tag("task", ctx.job.task)
    scope.set_tag("queue", ctx.job.queue)
    scope.set_context(
        "job", {"key": ctx.job.key, "attempt": ctx.attempt, "arguments": dict(ctx.args)}
    )


@app.task(name="charge", retry=Constant("0s"), max_attempts=2)
async def charge(order: int) -> None:
    sentry_sdk.add_breadcrumb(message=f"calling the bank for order {order}")
    raise ConnectionError("the bank does not answer")


async def main() -> None:
    async with app.worker():
        job = await charge.using(key="order:7").enqueue(order=7)
        try:
            await job.result()
        except DuetimeError as error:
            print(error)
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
