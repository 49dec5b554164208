"""Tasks with due dates, over HTTP. Their assignees are reminded a day before: `uvicorn tasks:api`.

    curl -X POST localhost:8000/tasks --json '{"title": "Taxes", "due": "2026-05-31T12:00Z"}'
    curl localhost:8000/tasks/1/history

The table is the application's own, and its endpoints contain no code for reminders: Duetime
tracks the table. A change of a row, here, in psql or in another language, changes its reminders in
the same transaction.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import AwareDatetime, BaseModel
from sqlalchemy import DateTime, Dialect, TypeDecorator, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from duetime import Duetime, Reminder, Sent, Skip, Snooze

DATABASE = os.environ.get("DUETIME_DATABASE", "sqlite:///tasks.db")
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
scheme, _, rest = DATABASE.partition(":")

engine = create_async_engine(f"{DRIVERS[scheme]}:{rest}")
Session = async_sessionmaker(engine, expire_on_commit=False)
app = Duetime(DATABASE, migrate=True)


class Moment(TypeDecorator[datetime]):
    """A time in UTC, also in SQLite, whose times have no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value and value.replace(tzinfo=value.tzinfo or UTC)


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class Task(Base):
    __tablename__ = "tasks"

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    title: Mapped[str]
    due: Mapped[datetime] = mapped_column(Moment)
    assignee: Mapped[str]
    done: Mapped[bool] = mapped_column(default=False)


# Reminders

A_DAY_BEFORE = {"rule": "every 24h within the last 24h", "past": "send_now"}


@app.on_reminder
async def remind(reminder: Reminder) -> Sent | Skip | Snooze:
    """Remind of a task that is due in the next 24 h; at most once in 24 h, even if it moves.

    One that was reminded of and then postponed is reminded of again, 24 h after the last time.
    """
    sent = await app.reminders.list(subject=reminder.subject, status="sent")
    times = [one.ended_at for one in sent if one.ended_at is not None]
    if times:
        now, again = await app.now(), max(times) + timedelta(hours=24)
        if again >= reminder.due_at:
            return Skip("reminded of it in the last 24 h")
        if again > now:
            return Snooze(again - now, "reminded of it in the last 24 h")
    print(f"To {reminder.recipient}: {reminder.data['title']}, until {reminder.due_at}", flush=True)
    return Sent()


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await app.tables.put(
        "tasks",
        id="id",
        due="due",
        when="not done",
        recipients="assignee",
        data=["title"],
        remind=[A_DAY_BEFORE],
    )
    async with app.lifespan(worker=True)(api):
        yield
    await engine.dispose()


api = FastAPI(lifespan=lifespan)


# The application


class NewTask(BaseModel):
    title: str
    due: AwareDatetime
    assignee: str = "ann"


class ShownTask(NewTask, from_attributes=True):
    id: int
    done: bool


class Change(BaseModel):
    title: str | None = None
    due: AwareDatetime | None = None
    assignee: str | None = None
    done: bool | None = None


@api.post("/tasks", status_code=201, response_model=ShownTask)
async def add_task(new: NewTask) -> Task:
    async with Session.begin() as session:
        task = Task(**new.model_dump())
        session.add(task)
    return task


@api.get("/tasks", response_model=list[ShownTask])
async def list_tasks() -> list[Task]:
    async with Session() as session:
        return list(await session.scalars(select(Task).order_by(Task.due)))


@api.get("/tasks/{task_id}", response_model=ShownTask)
async def get_task(task_id: int) -> Task:
    async with Session() as session:
        return await find_task(session, task_id)


@api.patch("/tasks/{task_id}", response_model=ShownTask)
async def change_task(task_id: int, change: Change) -> Task:
    async with Session.begin() as session:
        task = await find_task(session, task_id)
        for name, value in change.model_dump(exclude_unset=True).items():
            setattr(task, name, value)
    return task


@api.delete("/tasks/{task_id}", status_code=204)
async def delete_task(task_id: int) -> None:
    async with Session.begin() as session:
        await session.delete(await find_task(session, task_id))


@api.get("/tasks/{task_id}/history")
async def get_history(task_id: int) -> dict[str, list[dict[str, Any]]]:
    """Say who changed what, newest first, and what became of each reminder, earliest first.

    Of a task that was deleted, the audit stays.
    """
    ref = f"tasks:{task_id}"
    events = await app.audit.list(entity=f"subject:{ref}")
    reminders = await app.reminders.list(subject=ref)
    return {
        "audit": [{"at": one.at, "action": one.action, "by": one.actor} for one in events],
        "reminders": [
            {
                "time": one.time,
                "to": one.recipient,
                "status": one.status,
                "reason": one.reason and str(one.reason),
            }
            for one in reminders
        ],
    }


async def find_task(session: AsyncSession, task_id: int) -> Task:
    task = await session.get(Task, task_id)
    if task is None:
        raise HTTPException(404, "There is no such task.")
    return task
