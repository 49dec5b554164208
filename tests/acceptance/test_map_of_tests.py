"""CONTRIBUTING.md says where each test and each helper of the tests is, and names are unique."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
SHOWN = set(re.findall(r"`(tests/[\w/.]+)`", (TESTS.parent / "CONTRIBUTING.md").read_text()))
FILES = [file for file in TESTS.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def test_every_folder_of_tests_is_on_the_map() -> None:
    folders = {f"tests/{file.relative_to(TESTS).parts[0]}/" for file in FILES if nested(file)}

    assert folders - SHOWN == set()


def test_every_helper_of_the_tests_is_on_the_map() -> None:
    helpers = {
        f"tests/{file.relative_to(TESTS)}"
        for file in FILES
        if file.suffix == ".py" and not file.name.startswith(("test_", "conftest"))
    }
    listed_by_their_folder = {f"tests/{name}/" for name in ("mutants", "recorded")}

    assert len(helpers) > 20
    assert {
        helper for helper in helpers - SHOWN if not helper.startswith(tuple(listed_by_their_folder))
    } == set()


def test_the_map_shows_only_what_is_there() -> None:
    assert {path for path in SHOWN if not (TESTS.parent / path).exists()} == set()


def test_no_two_files_of_tests_have_one_name() -> None:
    names = Counter(file.name for file in FILES if file.suffix == ".py")
    del names["conftest.py"]

    assert [name for name, count in names.items() if count > 1] == []


def test_the_recipes_name_only_files_that_are_there() -> None:
    recipes = (TESTS.parent / "docs" / "contributing.md").read_text()
    paths = set(re.findall(r"`((?:src|tests|docs)/[\w/.-]+)`", recipes))

    assert len(paths) > 30
    assert {path for path in paths if not (TESTS.parent / path).exists()} == set()


def nested(file: Path) -> bool:
    return file.parent != TESTS
