"""Everything public is imported from `duetime`, and the manual uses nothing else."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import typing
from importlib import import_module
from pathlib import Path

import pytest

import duetime
from duetime import errors, testing

ROOT = Path(__file__).parents[2]
_FROM = re.compile(r"^ *from (duetime[a-z_.]*) import (\([^)]*\)|[A-Za-z_, ]+)", re.MULTILINE)
_PUBLIC = re.compile(r"duetime(\.errors|\.testing|\.integrations(\.[a-z_]+)?)?")
_LIBRARIES = {
    "AbstractAsyncContextManager", "Logger", "Path", "Random", "Raw", "SSLContext", "UUID",
}  # fmt: skip
# Made by the app alone: how is nobody's concern.
_GIVEN = {"BoundFlow", "BoundTask", "Context", "Flow", "FlowRun", "FlowTask", "JobHandle", "Task"}
# Users pass them on; what is in them is ours.
_OPAQUE = {"Timetable", "Worker"}
_TYPE_VARIABLE = re.compile(
    r"[A-Z](_co)?|[A-Z][a-z]*T|ReminderHandler|DigestHandler|Concatenate|Self"
)


def imported_for_type_checkers() -> dict[str, str]:
    tree = ast.parse(inspect.getsource(duetime))
    [block] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.name: node.module or ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_three_lists_of_public_names_are_one() -> None:
    assert sorted(duetime.__all__) == duetime.__all__
    assert imported_for_type_checkers() == duetime._HOMES
    assert sorted(duetime._HOMES) == duetime.__all__


@pytest.mark.parametrize("name", duetime.__all__)
def test_a_public_name_can_be_imported_and_is_shown(name: str) -> None:
    value = getattr(duetime, name)

    assert value is not None
    assert name in dir(duetime)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Duetim'"):
        _ = duetime.Duetim


def test_every_error_is_public() -> None:
    ours = {name for name, value in vars(errors).items() if hasattr(value, "code")}

    assert ours <= set(duetime.__all__)


def public_signatures() -> list[tuple[str, str]]:
    """The annotations of all public methods and fields of public classes."""
    found = []
    for name in duetime.__all__:
        value = getattr(duetime, name)
        ours = inspect.isclass(value) and value.__module__.startswith("duetime")
        if not ours or name in _OPAQUE:
            continue
        for member, text in inspect.get_annotations(value).items():
            if not member.startswith("_"):
                found.append((f"{name}.{member}", str(text)))
        for member, method in vars(value).items():
            if member.startswith("_") and member not in ("__init__", "__getitem__", "__call__"):
                continue
            if member == "__init__" and name in _GIVEN:
                continue
            function = method.fget if isinstance(method, property) else method
            function = getattr(function, "_make", function)
            if callable(function):
                texts = inspect.get_annotations(function).values()
                found += [(f"{name}.{member}", str(text)) for text in texts]
    return found


def test_every_type_in_a_public_signature_is_public() -> None:
    known = {*duetime.__all__, *dir(builtins), *dir(typing), *testing.__all__, *_LIBRARIES}
    known |= set(dir(import_module("collections.abc"))) | set(dir(import_module("types")))
    hidden = {
        f"{where}: {name}"
        for where, text in public_signatures()
        for name in re.findall(r"\b[A-Z]\w+\b", re.sub(r"'[^']*'|\"[^\"]*\"", "", text))
        if name not in known and not _TYPE_VARIABLE.fullmatch(name)
    }

    assert hidden == set()


def pages() -> list[Path]:
    manual = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
    return [ROOT / "README.md", *manual, *(ROOT / "examples").rglob("*.py")]


def test_the_manual_and_the_examples_import_public_names_only() -> None:
    used = [
        (module, name.strip(), page)
        for page in pages()
        for module, names in _FROM.findall(page.read_text())
        for name in names.strip("()").split(",")
        if name.strip()
    ]

    assert len(used) > 50
    for module, name, page in used:
        assert _PUBLIC.fullmatch(module), f"{page.name}: {module} is not public"
        name = name.split(" as ")[0]
        if not hasattr(import_module(module), name):
            import_module(f"{module}.{name}")
