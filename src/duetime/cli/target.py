"""What a command works on: the app or the database, and how it answers."""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click
import msgspec

from duetime.app import Duetime
from duetime.errors import DuetimeError, InvalidInput, SettingsError
from duetime.settings import Settings
from duetime.wiring import file_of

T = TypeVar("T")

_KEYWORD = re.compile(r"(?<![\w'\"`=.?&-])([a-z_]+)=(?:True\b|(?=([^\s,.:;)]?)))")
"""A keyword of a call, and whether a value follows it. Nothing in the middle of other text."""


class Target(msgspec.Struct):
    """The options that every command has."""

    app: str | None = None
    database: str | None = None
    json: bool = False

    def load(self) -> Duetime:
        """Return the app that was named, or one without tasks on the database that was named."""
        app = Duetime(self.database) if self.app is None else load_app(self.app)
        if self.database is not None:
            file_of(self.database)  # Checks the URL.
            app.settings = msgspec.structs.replace(app.settings, database=self.database)
        return app

    def settings(self) -> Settings:
        return self.load().settings

    def run(self, work: Callable[[Duetime], Awaitable[T]], *, reveal: bool = False) -> T:
        """Do `work` with the app on an event loop, and return its answer as people are shown it:
        without passwords and the like, unless `reveal`. It never makes tables: that is `db init`'s.
        """
        app = self.load()
        app.settings = msgspec.structs.replace(app.settings, migrate=False)
        # Here, where Ctrl-C interrupts it: `asyncio.run` would wait for its thread.
        app._database.check_schema()

        async def main() -> T:
            await app.store()
            try:
                answer = await work(app)
                return answer if reveal else app.redacted(answer)
            finally:
                await app.close()

        return asyncio.run(main())


class Command(click.Command):
    """A command with the shared options at its end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            error.args = (name_options(str(error), ctx), *error.args[1:])
            raise


class Group(click.Group):
    """A group of commands; the shared options may stand before or after any of its words."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, app_variable: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options(app_variable)


class RootGroup(Group):
    """The command `duetime`: it imports a command when that is used, and none for its help.

    `commands_at`: for each name the module and variable of the command, and its summary.
    """

    def __init__(
        self, *args: Any, commands_at: Mapping[str, tuple[str, str]], **kwargs: Any
    ) -> None:
        super().__init__(*args, app_variable="DUETIME_APP", **kwargs)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_at:
            return None
        module, _, variable = self._commands_at[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"duetime.cli.{module}"), variable)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self._commands_at[name][1]) for name in self.list_commands(ctx)]
            )


def name_options(message: str, context: click.Context) -> str:
    """Return what an error says with the names of the command and its options, instead of those of
    the call in Python: `after=` is `--after`, and `cancel_all()` is `duetime jobs cancel-all`."""
    options = {
        str(option.name): option.opts[0]
        for option in context.command.params
        if isinstance(option, click.Option)
    }

    def name(found: re.Match[str]) -> str:
        if found[1] not in options:
            return found[0]
        return options[found[1]] + (" " if found[2] else "")

    call = f"{str(context.command.name).replace('-', '_')}()"
    return _KEYWORD.sub(name, message).replace(call, f"`{context.command_path}`")


def target_of(context: click.Context) -> Target:
    return context.ensure_object(Target)


def _shared_options(app_variable: str | None = None) -> list[click.Parameter]:
    return [
        click.Option(
            ["--app"],
            envvar=app_variable,
            metavar="MODULE:APP",
            help="The app, such as shop.jobs:app, or a TOML file (or DUETIME_APP).",
            expose_value=False,
            callback=_remember,
        ),
        click.Option(
            ["--database"],
            metavar="URL",
            help="postgresql://… or sqlite:///file (or DUETIME_DATABASE).",
            expose_value=False,
            callback=_remember,
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            help="Print JSON.",
            expose_value=False,
            callback=_remember,
        ),
    ]


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    target = target_of(context)
    if value == "":
        raise click.BadParameter("must not be empty. Leave it out, or give a value.")
    if value and parameter.name is not None:
        setattr(target, parameter.name, value)


def load_app(path: str) -> Duetime:
    """Import `module:attribute`, with the current directory on the path, or read a TOML file."""
    if path.endswith(".toml"):
        from duetime.integrations.app_file import load_app_file

        return load_app_file(Path(path))
    module_name, colon, attribute = path.partition(":")
    if not module_name or (colon and not attribute):
        raise SettingsError(f"--app must be MODULE:APP, such as shop.jobs:app, got {path!r}.")
    if "/" in module_name or module_name.endswith(".py"):
        parts = [
            part for part in module_name.removesuffix(".py").split("/") if part not in ("", ".")
        ]
        raise SettingsError(
            f"--app takes a module, not a file. Write {'.'.join(parts)}{colon}{attribute}, and run "
            "the command in the directory from which Python imports it."
        )
    module = import_named(module_name)
    value: Any = module
    for name in (attribute or "app").split("."):
        value = getattr(value, name, None)
    if isinstance(value, Duetime):
        return value
    apps = [name for name, item in vars(module).items() if isinstance(item, Duetime)]
    hint = f" Did you mean {module_name}:{apps[0]}?" if apps else ""
    if value is None:
        raise SettingsError(f"The module {module_name!r} has no {attribute or 'app'!r}.{hint}")
    raise SettingsError(
        f"{module_name}:{attribute or 'app'} must be a Duetime app, got {value!r:.60}.{hint}"
    )


def import_named(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise SettingsError(
                f"There is no module {error.name!r}, neither in {here} nor among the installed "
                "packages."
            ) from None
        raise SettingsError(f"The module {name!r} cannot be imported: {error}.") from error
    except DuetimeError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise SettingsError(
            f"The module {name!r} cannot be imported: {type(error).__name__}: {error} "
            f"({frame.filename}, line {frame.lineno})."
        ) from error
