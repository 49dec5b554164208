"""One name, one function: what a second registration under a name is."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from duetime import Context, Duetime, Sent
from duetime.channels.console import Console
from duetime.domain.jobs.retry import Constant
from duetime.errors import InvalidInput

Load = Callable[[str, str], ModuleType]


@pytest.fixture
def app() -> Duetime:
    return Duetime("sqlite:///unused.db")


@pytest.fixture
def load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: Duetime
) -> Iterator[Callable[[str, str], ModuleType]]:
    """Write a module and import it. It finds the app in the module `application`."""
    application = ModuleType("application")
    application.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "application", application)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def load(name: str, text: str) -> ModuleType:
        source = "from application import app\n" + textwrap.dedent(text)
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        known = sys.modules.get(name)
        return importlib.import_module(name) if known is None else importlib.reload(known)

    yield load
    for name in set(sys.modules) - before:
        del sys.modules[name]


PROCESS = """
    @app.task(name="process")
    def process() -> str:
        return "{}"
"""


def run(app: Duetime, task: str, *args: Any) -> Any:
    return app.tasks[task].function(*args)


def test_two_modules_that_register_one_name_are_both_named(app: Duetime, load: Load) -> None:
    load("refunds", PROCESS.format("refund"))

    with pytest.raises(InvalidInput) as refused:
        load("payments", PROCESS.format("payment"))

    message = str(refused.value)
    assert "The task 'process' is registered twice" in message
    assert "refunds.process (" in message
    assert "refunds.py:3)" in message
    assert "payments.process (" in message
    assert "payments.py:3)" in message
    assert run(app, "process") == "refund"


def test_a_function_that_shadows_another_of_its_module_is_refused(load: Load) -> None:
    with pytest.raises(InvalidInput, match=r"by twice.process \(.*:3\) and by .*\(.*:7\)"):
        load("twice", PROCESS.format("first") + PROCESS.format("second"))


def test_two_lambdas_are_two_functions(app: Duetime) -> None:
    app.task(name="one")(lambda: 1)
    with pytest.raises(InvalidInput, match="The task 'one' is registered twice"):
        app.task(name="one")(lambda: 2)

    first, second = (lambda: 1), (lambda: 2)
    app.task(name="other")(first)
    with pytest.raises(InvalidInput, match="The task 'other' is registered twice"):
        app.task(name="other")(second)


def test_a_closure_is_told_from_its_sibling_by_what_it_holds(app: Duetime) -> None:
    def make(amount: int) -> None:
        @app.task(name="pay")
        def pay() -> int:
            return amount

    make(1)
    make(1)

    with pytest.raises(InvalidInput, match=r"registered twice by .*pay .*with different values"):
        make(2)
    assert run(app, "pay") == 1


def test_a_lambda_is_told_from_its_sibling_by_its_defaults(app: Duetime) -> None:
    pay = [lambda amount=amount: amount for amount in (1, 2)]
    refund = [lambda *, amount=amount: amount for amount in (1, 2)]
    app.task(name="pay")(pay[0])
    app.task(name="refund")(refund[0])

    with pytest.raises(InvalidInput, match="registered twice"):
        app.task(name="pay")(pay[1])
    with pytest.raises(InvalidInput, match="registered twice"):
        app.task(name="refund")(refund[1])


def test_methods_of_two_objects_are_two_functions(app: Duetime) -> None:
    class Shop:
        def pay(self) -> None: ...

    one, other = Shop(), Shop()
    app.task(name="pay")(one.pay)
    app.task(name="pay")(one.pay)

    with pytest.raises(InvalidInput, match="registered twice"):
        app.task(name="pay")(other.pay)


def test_a_decorator_does_not_hide_which_function_it_is(app: Duetime) -> None:
    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    def pay() -> None: ...
    def refund() -> None: ...

    app.task(name="pay")(traced(pay))
    app.task(name="pay")(traced(pay))

    with pytest.raises(InvalidInput, match=r"by .*\bpay \(.* and by .*\brefund \("):
        app.task(name="pay")(traced(refund))
    with pytest.raises(InvalidInput, match="registered twice"):
        app.task(name="pay")(pay)


def test_a_setup_that_is_called_twice_registers_the_same(app: Duetime) -> None:
    def setup(region: dict[str, str]) -> None:
        @app.task(name="ping")
        async def ping() -> None:
            await pong.enqueue()

        @app.task(name="pong")
        async def pong() -> None:
            await ping.enqueue()
            await pong.enqueue()
            print(region)

    setup({"name": "eu"})
    setup({"name": "eu"})

    with pytest.raises(InvalidInput, match="The task 'pong' is registered twice"):
        setup({"name": "us"})


def test_a_partial_is_refused_in_words(app: Duetime) -> None:
    with pytest.raises(InvalidInput, match=r"A task must be a function, got functools\.partial"):
        app.task(name="print")(partial(print, "a"))


def test_a_module_that_is_reloaded_replaces_what_it_registered(app: Duetime, load: Load) -> None:
    load("refunds", PROCESS.format("before"))
    load("refunds", PROCESS.format("before"))
    load("refunds", "\n\n" + PROCESS.format("edited"))

    assert run(app, "process") == "edited"


def test_a_module_that_is_imported_anew_replaces_what_it_registered(
    app: Duetime, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    load("refunds", PROCESS.format("before"))
    monkeypatch.delitem(sys.modules, "refunds")
    load("refunds", PROCESS.format("edited"))

    assert run(app, "process") == "edited"


def test_a_reloaded_module_may_not_take_the_name_of_another(load: Load) -> None:
    load("refunds", PROCESS.format("refund"))
    load("payments", "")

    with pytest.raises(InvalidInput, match="registered twice"):
        load("payments", PROCESS.format("payment"))


def test_a_factory_in_one_module_that_two_others_call(load: Load) -> None:
    load(
        "factory",
        """
        def make(amount):
            @app.task(name="pay")
            def pay() -> int:
                return amount
        """,
    )
    load("one", "import factory; factory.make(1)")

    with pytest.raises(InvalidInput, match=r"The task 'pay' is registered twice by factory\.make"):
        load("two", "import factory; factory.make(2)")


@pytest.mark.parametrize("arguments", [["shop/tasks.py"], ["-m", "shop.tasks"]])
def test_a_script_may_also_be_imported(tmp_path: Path, arguments: list[str]) -> None:
    """`python tasks.py` runs the file as `__main__`; what imports it by name runs it again."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (tmp_path / "application.py").write_text(
        "from duetime import Duetime\napp = Duetime('sqlite:///unused.db')\n"
    )
    (shop / "tasks.py").write_text(
        "import sys; sys.path.insert(0, '.')\n"
        "from application import app\n"
        "@app.task(name='process')\n"
        "def process(): ...\n"
        "@app.on_reminder\n"
        "def remind(reminder): ...\n"
        "@app.schedule('@daily', name='daily')\n"
        "@app.task\n"
        "def other(): ...\n"
        "if __name__ == '__main__':\n"
        "    import shop.tasks\n"
        "    print(sorted(app.tasks))\n"
    )

    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stderr == ""
    assert "'process'" in done.stdout


def test_a_spawned_process_gives_a_script_s_tasks_the_same_names(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "import multiprocessing\n"
        "from duetime import Duetime\n"
        "app = Duetime('sqlite:///unused.db')\n"
        "@app.task\n"
        "def process(): ...\n"
        "def show(): print(sorted(app.tasks), flush=True)\n"
        "if __name__ == '__main__':\n"
        "    show()\n"
        "    child = multiprocessing.get_context('spawn').Process(target=show)\n"
        "    child.start()\n"
        "    child.join()\n"
    )

    done = subprocess.run(
        [sys.executable, "tasks.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout.splitlines() == ["['tasks.process']"] * 2, done.stderr


def test_a_cell_of_a_notebook_may_run_again(app: Duetime) -> None:
    notebook: dict[str, Any] = {"__name__": "__main__", "app": app}

    def cell(text: str, number: int) -> None:
        exec(compile(textwrap.dedent(text), f"/tmp/cell/{number}.py", "exec"), notebook)

    cell(PROCESS.format("before"), 1)
    cell(PROCESS.format("before"), 1)
    cell(PROCESS.format("edited"), 2)
    assert run(app, "process") == "edited"

    cell("task = app.task(name='add')(lambda: 1)", 3)
    cell("task = app.task(name='add')(lambda: 2)", 4)
    assert run(app, "add") == 2

    with pytest.raises(InvalidInput, match="registered twice"):
        cell("@app.task(name='process')\ndef other(): ...", 5)
    with pytest.raises(InvalidInput, match="registered twice"):
        cell("for n in (1, 2):\n  app.task(name='loop')(lambda n=n: n)", 6)


def test_a_second_schedule_of_one_name_is_refused(app: Duetime, load: Load) -> None:
    load(
        "refunds",
        """
        @app.schedule("0 9 * * *", name="daily")
        @app.task
        def refund(): ...
        """,
    )

    with pytest.raises(InvalidInput) as refused:
        load(
            "payments",
            """
            @app.schedule("0 9 * * *", name="daily")
            @app.task
            def pay(): ...
            """,
        )

    message = str(refused.value)
    assert "The schedule 'daily' is registered twice" in message
    assert "refunds.py:3" in message
    assert "payments.py:3" in message
    assert [one.target for one in app.schedules.declared] == ["refunds.refund"]


def test_two_schedules_of_a_task_need_two_names(app: Duetime) -> None:
    @app.task(name="digest")
    def digest() -> None: ...

    app.schedule("0 9 * * *")(digest)
    app.schedule("0 9 * * *")(digest)
    with pytest.raises(InvalidInput, match=r"The schedule 'digest' .* name="):
        app.schedule("0 18 * * *")(digest)
    with pytest.raises(InvalidInput, match=r"The schedule 'digest' .* name="):
        app.schedules.declare(app.schedules.define("digest", digest, "@hourly"))

    app.schedule("0 18 * * *", name="evening")(digest)
    assert [one.name for one in app.schedules.declared] == ["digest", "evening"]


def test_a_reloaded_module_replaces_its_schedules(app: Duetime, load: Load) -> None:
    text = """
        @app.schedule("0 {} * * *", name="daily")
        @app.task
        def report(): ...
    """
    load("reports", text.format(9))
    load("reports", text.format(10))

    assert [one.timetable.describe() for one in app.schedules.declared] == ["cron 0 10 * * * (UTC)"]


@pytest.mark.parametrize("what", ["on_reminder", "on_digest"])
def test_a_second_handler_is_refused(app: Duetime, load: Load, what: str) -> None:
    text = f"""
        @app.{what}
        def {{}}(one): return "{{}}"
    """
    load("calls", text.format("call", "before"))
    load("calls", text.format("call", "edited"))

    with pytest.raises(InvalidInput) as refused:
        load("letters", text.format("write", "letter"))

    message = str(refused.value)
    assert f"The @app.{what} handler is registered twice" in message
    assert "calls.call (" in message
    assert "letters.write (" in message
    handlers = {
        "on_reminder": app._sender.handler,
        "on_digest": app._sender.digest_handler,
    }
    handler = handlers[what]
    assert handler is not None
    assert handler.function(None) == "edited"


def test_a_handler_that_is_refused_changes_no_options(app: Duetime) -> None:
    @app.on_reminder(max_attempts=2)
    def first(reminder: Any) -> Sent:
        return Sent()

    with pytest.raises(InvalidInput, match="handler is registered twice"):

        @app.on_reminder(max_attempts=7)
        def second(reminder: Any, ctx: Context) -> None: ...

    assert app.tasks["duetime.remind"].options.max_attempts == 2
    assert app._sender.handler is not None
    assert app._sender.handler.function is first


def test_an_option_of_all_reminders_is_given_once(app: Duetime) -> None:
    slowly = Constant("1s")
    app.add_channel(Console(io.StringIO(), name="a"), timeout="5s", retry=slowly)
    app.add_channel(Console(io.StringIO(), name="b"), timeout="5s", retry=slowly)
    app.add_channel(Console(io.StringIO(), name="c"), queue="mail")

    with pytest.raises(InvalidInput, match=r"The option timeout= of reminders is registered twice"):
        app.add_channel(Console(io.StringIO(), name="d"), timeout="10s")
    with pytest.raises(InvalidInput, match=r"The option retry= of reminders is registered twice"):
        app.add_channel(Console(io.StringIO(), name="e"), retry=Constant("2s"))

    assert list(app._sender.channels) == ["a", "b", "c"]


def test_templates_of_one_name_are_both_named(app: Duetime, load: Load) -> None:
    pytest.importorskip("jinja2")
    load("texts", "app.template('soon', body='before'); app.digest_template('soon')")
    load("texts", "app.template('soon', body='edited'); app.digest_template('late')")

    with pytest.raises(InvalidInput, match=r"The template 'soon' .*texts.py:2 and .*others.py:2"):
        load("others", "app.template('soon', body='another')")
    with pytest.raises(InvalidInput, match=r"The template of digests .*texts.py:2 and .*more.py:2"):
        load("more", "app.digest_template('soon')")


def test_a_reloaded_module_replaces_its_channel(app: Duetime, load: Load) -> None:
    text = """
        import io
        from duetime.channels.console import Console
        app.add_channel(Console(io.StringIO(), name="mail"))
    """
    load("channels", text)
    before = app._sender.channels["mail"].channel
    load("channels", text)

    assert app._sender.channels["mail"].channel is not before
    with pytest.raises(InvalidInput, match=r"The channel 'mail' .*channels.py:5 and .*other.py:5"):
        load("other", text)
