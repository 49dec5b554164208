"""A planted mistake: one realistic change of the code, and the tests that must notice it.

The entries are in the `.toml` files beside this module, one `[[mutant]]` each:

    name   unique, in words_with_underscores: what is wrong with the code
    file   the file to change, from the root of the tree
    old    the text to replace; it must occur in the file exactly once
    new    what replaces it
    tests  the tests that must fail, as path::function
    why    what would go wrong in production
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import msgspec

TREE = Path(__file__).resolve().parents[2]
ENTRIES = Path(__file__).resolve().parent


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    mutant: list[Mutant]


class Stale(Exception):
    """An entry that no longer fits the tree."""


def load_mutants(entries: Path = ENTRIES) -> list[Mutant]:
    """Return every entry, in the order of the files and of the entries in them."""
    mutants: list[Mutant] = []
    for path in sorted(entries.glob("*.toml")):
        try:
            mutants += msgspec.toml.decode(path.read_bytes(), type=_File).mutant
        except msgspec.MsgspecError as error:
            raise Stale(f"{path.name}: {error}") from error
    names = [mutant.name for mutant in mutants]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise Stale(f"Each mutant needs a name of its own. Used more than once: {doubled}")
    return mutants


def mutate(mutant: Mutant, tree: Path = TREE) -> str:
    """Return the text of the mutant's file with the mistake in it.

    Raises `Stale` if the entry no longer applies: the text is not there exactly once, or a test
    does not exist.
    """
    path = tree / mutant.file
    if not path.is_file():
        raise Stale(f"{mutant.name}: there is no file {mutant.file}")
    text = path.read_text()
    found = text.count(mutant.old) if mutant.old else 0
    if found != 1:
        raise Stale(f"{mutant.name}: `old` occurs {found} times in {mutant.file}, not once")
    if mutant.old == mutant.new:
        raise Stale(f"{mutant.name}: `new` changes nothing")
    if not mutant.tests or not mutant.why.strip():
        raise Stale(f"{mutant.name}: needs at least one test, and a reason")
    for test in mutant.tests:
        file, _, function = test.partition("::")
        if function not in _functions(tree / file):
            raise Stale(f"{mutant.name}: there is no test {test}; write path::function")
    return text.replace(mutant.old, mutant.new)


@cache
def _functions(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    body = ast.parse(path.read_text()).body
    return frozenset(
        node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
