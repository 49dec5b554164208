"""`duetime top`: a live view of what waits and runs."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import click

from duetime.app import Duetime
from duetime.cli.moment import SPAN
from duetime.cli.output import echo, one_line, print_json, terminal_width
from duetime.cli.target import Command, target_of
from duetime.cli.top.frame import (
    Line,
    Order,
    Part,
    Snapshot,
    Style,
    as_text,
    make_frame,
    take_snapshot,
)
from duetime.cli.top.screen import Screen
from duetime.domain.duration import format_duration
from duetime.domain.urls import show_url
from duetime.errors import StorageError

_LEAST_EVERY = timedelta(milliseconds=100)


@click.command(cls=Command)
@click.option("--once", is_flag=True, help="Print one frame and exit.")
@click.option(
    "--every",
    type=SPAN,
    metavar="SPAN",
    default="1s",
    help="How often the numbers are read.  [default: 1s]",
)
@click.option(
    "--sort",
    "order",
    type=click.Choice([str(order) for order in Order]),
    default=str(Order.NAME),
    help="By what queues and tasks are sorted.  [default: name]",
)
@click.pass_context
def top(context: click.Context, once: bool, every: timedelta, order: str) -> None:
    """Show what is due, late, running and dead, live.

    Per queue, task and worker. Each read is bounded, however much waits.

    \b
    Keys: q  quit
          p  pause or continue
          s  sort by another column
    """
    if every < _LEAST_EVERY:
        raise click.UsageError(f"--every must be at least {format_duration(_LEAST_EVERY)}.")
    target = target_of(context)
    if target.json or once:
        shot = target.run(take_snapshot)
        if target.json:
            print_json(shot)
            return
        _print(shot, _title(target.settings().database), Order(order))
        return
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise click.UsageError("duetime top needs a terminal. Use --once to print one frame.")

    async def watch(app: Duetime) -> None:
        with Screen() as screen:
            await _Top(app, screen, every, Order(order)).run()

    target.run(watch)


def _print(shot: Snapshot, title: str, order: Order) -> None:
    width = terminal_width()
    frame = make_frame(shot, title=title, width=width, height=None, order=order)
    for line in as_text(frame, width, lambda text, _: text):
        echo(line)


def _title(url: str) -> str:
    return f"duetime top  {show_url(url)}"


class _Top:
    """Reads the numbers again and again, and draws them when they have come or a key is typed."""

    def __init__(self, app: Duetime, screen: Screen, every: timedelta, order: Order) -> None:
        self._app = app
        self._screen = screen
        self._every = every
        self._order = order
        self._paused = False
        self._shot: Snapshot | None = None
        self._problem: str | None = None

    async def run(self) -> None:
        reading = asyncio.create_task(self._keep_reading())
        reading.add_done_callback(lambda _: self._screen.keys.put_nowait("q"))
        try:
            while (key := await self._screen.keys.get()) not in ("q", "Q"):
                match key:
                    case "p" | "P" | " ":
                        self._paused = not self._paused
                    case "s" | "S":
                        self._order = self._order.next
                self._draw()
            if reading.done():
                reading.result()
        finally:
            reading.cancel()

    async def _keep_reading(self) -> None:
        while True:
            if not self._paused:
                await self._read()
                self._draw()
            await asyncio.sleep(self._every.total_seconds())

    async def _read(self) -> None:
        try:
            shot = await take_snapshot(self._app)
        except StorageError as error:
            self._problem = str(error)
        else:
            self._problem = None
            if not self._paused:
                self._shot = shot

    def _draw(self) -> None:
        width, height = self._screen.size
        lines: list[Line] = []
        if self._shot is not None:
            title = _title(self._app.settings.database)
            lines += make_frame(
                self._shot, title=title, width=width, height=height - 2, order=self._order
            )
        lines = lines[: height - 2]
        lines += [[]] * (height - 2 - len(lines))
        lines += [self._message(), self._footer()]
        self._screen.draw(as_text(lines, width, self._screen.paint))

    def _message(self) -> Line:
        if self._problem is None:
            return []
        return [Part(f"The numbers are old: {one_line(self._problem)}", Style.BAD)]

    def _footer(self) -> Line:
        state = "paused" if self._paused else f"every {format_duration(self._every)}"
        return [
            Part("q", Style.HEADING),
            Part(" quit  "),
            Part("p", Style.HEADING),
            Part(" go on  " if self._paused else " pause  "),
            Part("s", Style.HEADING),
            Part(f" sort: {self._order}  "),
            Part(state, Style.BAD if self._paused else Style.FAINT),
        ]
