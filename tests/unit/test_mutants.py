"""The planted mistakes still fit the tree, and their runner tells caught from survived.

`make mutants` runs them; that takes minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, Stale, load_mutants, mutate
from tests.mutants.runner import Verdict, main, run_mutant


@pytest.mark.parametrize("mutant", load_mutants(), ids=lambda mutant: mutant.name)
def test_planted_mistake_still_applies(mutant: Mutant) -> None:
    assert mutate(mutant)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with one function and one test."""
    tree = tmp_path / "tree"
    (tree / "src").mkdir(parents=True)
    (tree / "src" / "doubling.py").write_text("def double(n):\n    return n * 2\n")
    (tree / "test_double.py").write_text(
        "import doubling\n\ndef test_double():\n    assert doubling.double(3) == 6\n"
    )
    return tree


def planted(**changed: object) -> Mutant:
    fields: dict[str, object] = {
        "name": "triples",
        "file": "src/doubling.py",
        "old": "n * 2",
        "new": "n * 3",
        "tests": ("test_double.py::test_double",),
        "why": "The answer would be wrong.",
    }
    return Mutant(**(fields | changed))  # type: ignore[arg-type]


def test_test_that_fails_anyway_catches_nothing(tree: Path) -> None:
    (tree / "test_double.py").write_text("def test_double():\n    assert False\n")

    assert run_mutant(planted(), tree, set()).verdict is Verdict.STALE


def test_mistake_that_cannot_be_imported_is_not_caught(tree: Path) -> None:
    assert run_mutant(planted(new="n *"), tree, set()).verdict is Verdict.STALE


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"old": "n * 4"}, "occurs 0 times"),
        ({"old": "n"}, "occurs 3 times"),
        ({"new": "n * 2"}, "changes nothing"),
        ({"file": "src/trebling.py"}, "no file"),
        ({"tests": ("test_double.py::test_triple",)}, "no test"),
        ({"tests": ("test_triple.py::test_double",)}, "no test"),
        ({"tests": ()}, "at least one test"),
        ({"why": " "}, "reason"),
    ],
)
def test_entry_that_no_longer_fits_is_refused(
    tree: Path, changed: dict[str, object], reason: str
) -> None:
    with pytest.raises(Stale, match=reason):
        mutate(planted(**changed), tree)


@pytest.fixture
def where(tree: Path, tmp_path: Path) -> list[str]:
    """Two entries: one changes what the function returns, the other does not."""
    entries = tmp_path / "entries"
    entries.mkdir()
    (entries / "doubling.toml").write_text(
        "".join(
            f'[[mutant]]\nname = "{name}"\nfile = "src/doubling.py"\nold = "n * 2"\n'
            f'new = "{new}"\ntests = ["test_double.py::test_double"]\nwhy = "The answer."\n'
            for name, new in {"triples": "n * 3", "swaps": "2 * n"}.items()
        )
    )
    return ["--tree", str(tree), "--entries", str(entries)]


def test_mistake_that_a_test_notices_is_caught(
    where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*where, "triples"]) == 0
    assert "1 caught, 0 SURVIVED, 0 STALE" in capsys.readouterr().out


def test_mistake_that_no_test_notices_survives_and_the_tree_is_unchanged(
    where: list[str], tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*where, "swaps"]) == 1
    assert "not noticed by test_double.py::test_double" in capsys.readouterr().out
    assert "n * 2" in (tree / "src" / "doubling.py").read_text()
