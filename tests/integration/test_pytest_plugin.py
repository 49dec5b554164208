"""The pytest plugin, in pytest runs of its own."""

from __future__ import annotations

import pytest

from tests.conftest import Backend

pytest_plugins = ["pytester"]

ASYNCIO = ("-o", "asyncio_default_fixture_loop_scope=function")

SHOP = """
    from duetime import Duetime

    app = Duetime({url!r})
    sent = []

    @app.task(name="send", retry={retry})
    async def send(to: str) -> None:
        sent.append(to)
"""


@pytest.fixture
def shop(pytester: pytest.Pytester, backend: Backend) -> pytest.Pytester:
    """A project with an app of its own, named in its settings of pytest."""
    pytester.makepyfile(shop=SHOP.format(url=backend.url, retry=None))
    pytester.makeini("[pytest]\npythonpath = .\nduetime_app = shop:app\nfilterwarnings = error\n")
    return pytester


def test_an_async_test_has_its_world_on_its_own_loop(shop: pytest.Pytester) -> None:
    shop.makepyfile("""
        import asyncio
        import pytest
        from shop import app, send, sent

        @pytest.mark.asyncio
        @pytest.mark.duetime(now="2026-03-08T00:00Z")
        async def test_world(duetime_world):
            await send.using(delay="3d").enqueue(to="ann")
            assert await duetime_world.advance("3d") == 1
            assert sent == ["ann"]
            assert duetime_world.now.isoformat() == "2026-03-11T00:00:00+00:00"
            assert duetime_world._loop is asyncio.get_running_loop()

        @pytest.mark.asyncio
        async def test_another(duetime_world, duetime_app):
            assert duetime_app is app
            await duetime_world.assert_not_enqueued(send)
    """)

    shop.runpytest_subprocess(*ASYNCIO).assert_outcomes(passed=2)


def test_a_sync_test_has_a_world(shop: pytest.Pytester) -> None:
    shop.makepyfile("""
        import pytest
        from shop import app, send, sent

        def test_world(duetime_world):
            send.using(delay="3d").enqueue_sync(to="ann")
            assert app.sync(duetime_world.advance("3d")) == 1

        @pytest.mark.duetime(inline=True)
        def test_inline(duetime_world):
            send.enqueue_sync(to="bob")
            assert sent == ["ann", "bob"]
    """)

    shop.runpytest_subprocess("-q", "-p", "no:asyncio").assert_outcomes(passed=2)


def test_anyio_needs_no_other_plugin(shop: pytest.Pytester) -> None:
    shop.makepyfile("""
        import asyncio
        import pytest
        from shop import send

        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_world(duetime_world, anyio_backend):
            await send.enqueue(to="ann")
            assert await duetime_world.drain() == 1
            assert duetime_world._loop is asyncio.get_running_loop()
    """)

    shop.runpytest_subprocess("-q", "-p", "no:asyncio").assert_outcomes(passed=1)


def test_a_failure_lists_what_is_enqueued(shop: pytest.Pytester) -> None:
    shop.makepyfile("""
        from shop import app, send

        def test_world(duetime_world):
            send.using(delay="1d").enqueue_sync(to="ann")
            app.sync(duetime_world.assert_enqueued(send, args={"to": "bob"}))
    """)

    result = shop.runpytest_subprocess(*ASYNCIO)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*args={'to': 'bob'}*found 0.", "*send args={'to': 'ann'}*"])


class TestWithoutAnApp:
    """These need no database."""

    def test_a_fixture_may_say_which_app(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("""
            import pytest
            from duetime import Duetime

            @pytest.fixture
            def duetime_app(tmp_path):
                return Duetime(f"sqlite:///{tmp_path}/jobs.db")

            def test_world(duetime_world, duetime_app):
                assert duetime_app.sync(duetime_world.drain()) == 0
        """)

        pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)

    def test_a_missing_app_is_a_clear_error(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("def test_world(duetime_world): ...")

        result = pytester.runpytest_subprocess("-q")

        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["*Set the ini option duetime_app = module:name*"])

    def test_whoever_does_not_use_it_pays_nothing(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("""
            import sys

            def test_nothing_is_imported(pytestconfig):
                assert pytestconfig.pluginmanager.hasplugin("duetime")
                assert not {"duetime.app", "duetime.testing", "msgspec"} & set(sys.modules)
        """)

        result = pytester.runpytest_subprocess("-q", "--strict-markers", "-p", "no:asyncio")

        result.assert_outcomes(passed=1)
