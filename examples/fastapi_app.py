"""Jobs inside FastAPI, in the transactions of SQLAlchemy: `uvicorn fastapi_app:api`.

    curl -X POST 'localhost:8000/orders?item=book'
    curl localhost:8000/orders/1

An order and the job that confirms it are committed together, or neither is. The worker starts
and stops with the server; the same tasks also run under `duetime worker --app fastapi_app:app`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from duetime import Context, Duetime

DATABASE = os.environ.get("DUETIME_DATABASE", "sqlite:///shop.db")
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
scheme, _, rest = DATABASE.partition(":")

engine = create_async_engine(f"{DRIVERS[scheme]}:{rest}")
Session = async_sessionmaker(engine, expire_on_commit=False)
app = Duetime(DATABASE, migrate=True)


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_order"

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    item: Mapped[str]
    status: Mapped[str] = mapped_column(default="placed")

    def to_json(self) -> dict[str, str | int]:
        return {"id": self.id, "item": self.item, "status": self.status}


@app.task
async def confirm(ctx: Context, order_id: int) -> None:
    async with Session.begin() as session:
        order = await session.get_one(Order, order_id)
        order.status = "confirmed"
        # The job is completed in the same commit: it cannot confirm twice.
        await ctx.complete(tx=session)


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with app.lifespan(worker=True)(api):
        yield
    await engine.dispose()


api = FastAPI(lifespan=lifespan)


@api.post("/orders", status_code=201)
async def place_order(item: str) -> dict[str, str | int]:
    async with Session.begin() as session:
        order = Order(item=item)
        session.add(order)
        await session.flush()
        await confirm.using(tx=session).enqueue(order_id=order.id)
        if item == "unicorn":
            raise HTTPException(422, "Out of stock: neither the order nor its job is kept.")
    return order.to_json()


@api.get("/orders/{order_id}")
async def get_order(order_id: int) -> dict[str, str | int]:
    async with Session() as session:
        order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "There is no such order.")
    return order.to_json()
