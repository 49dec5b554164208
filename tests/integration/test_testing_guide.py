"""The examples of the guide's page on testing run, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Backend

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "testing.md"
BLOCK = re.compile(r'^```(python|ini)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def test_the_examples_pass(pytester: pytest.Pytester, backend: Backend) -> None:
    tests: list[str] = []
    for _, title, code in BLOCK.findall(PAGE.read_text()):
        if title:
            Path(title).write_text(code.replace("sqlite:///shop.db", backend.url))
        else:
            tests.append(code)
    Path("test_guide.py").write_text("\n\n".join(tests))

    result = pytester.runpytest_subprocess(
        "-o", "pythonpath=.", "-o", "asyncio_default_fixture_loop_scope=function"
    )

    result.assert_outcomes(passed=sum(code.count("def test_") for code in tests))
