"""Deciding what runs when takes no tensor library."""

import ast
import pathlib
import sys

import pytest

from reprise.flashforward import schedule

FOLDER = pathlib.Path(schedule.__file__).parent
PURE = ("layout", "schedule", "walk", "formulas", "break_even")


@pytest.mark.parametrize("name", PURE)
def test_imports_are_of_the_standard_library_or_as_pure(name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module
            imported.add(node.module)
    allowed = {f"reprise.flashforward.{pure}" for pure in PURE}
    assert [module for module in imported - allowed if module.split(".")[0] not in sys.stdlib_module_names] == []
