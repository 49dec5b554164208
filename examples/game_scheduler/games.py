"""A game calendar. What is due goes to RabbitMQ as the event `game.reminder_due`.

A guild has rules for its channels, and a channel those for its games, unless it has its own. A game
and its reminders are written in one transaction: there is no moment in which they disagree.
"""

import os
from datetime import datetime

from sqlalchemy import DateTime
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from duetime import Console, Duetime

DATABASE = os.environ.get("DUETIME_DATABASE", "sqlite:///games.db")
BROKER = os.environ.get("AMQP_URL")  # Such as amqp://guest:guest@localhost/
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
scheme, _, rest = DATABASE.partition(":")

engine = create_async_engine(f"{DRIVERS[scheme]}:{rest}")
Session = async_sessionmaker(engine, expire_on_commit=False)
app = Duetime(DATABASE, migrate=True)

if BROKER:
    from duetime import RabbitMQ

    app.add_channel(RabbitMQ(BROKER, exchange="games", event="game.reminder_due"))
else:
    app.add_channel(Console())


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class Game(Base):
    __tablename__ = "game_session"

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    channel: Mapped[str]
    title: Mapped[str]
    starts_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    status: Mapped[str] = mapped_column(default="scheduled")

    @property
    def ref(self) -> str:
        return f"game:{self.id}"


async def create_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


async def plan_game(title: str, *, channel: str, starts: datetime, by: str) -> Game:
    async with Session.begin() as session:
        game = Game(channel=channel, title=title, starts_at=starts)
        session.add(game)
        await session.flush()  # From here on it has an id.
        await _arm(session, game, starts, by)
    return game


async def move_game(game_id: int, *, starts: datetime, by: str) -> None:
    async with Session.begin() as session:
        game = await session.get_one(Game, game_id, with_for_update=True)
        game.starts_at = starts
        await session.flush()
        await _arm(session, game, starts, by)


async def cancel_game(game_id: int, *, by: str) -> None:
    async with Session.begin() as session:
        game = await session.get_one(Game, game_id, with_for_update=True)
        game.status = "cancelled"
        await session.flush()
        await app.subjects.complete(game.ref, by=by, tx=session)


async def _arm(session: AsyncSession, game: Game, starts: datetime, by: str) -> None:
    """Make its reminders true: one event for each rule. The bot knows who plays."""
    await app.subjects.put(
        game.ref,
        due=starts,
        scope=game.channel,
        data={"title": game.title},
        by=by,
        tx=session,
    )
