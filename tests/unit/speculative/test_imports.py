"""Deciding what a stream samples and shows takes the standard library alone."""

import ast
import pathlib
import sys

import pytest

from reprise.speculative import machine

FOLDER = pathlib.Path(machine.__file__).parent
PURE = (
    "estimator",
    "events",
    "latency",
    "log",
    "machine",
    "registers",
    "report",
    "simulation",
    "transitions",
)


@pytest.mark.parametrize("name", PURE)
def test_imports_are_of_the_standard_library_or_as_pure(name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module
            imported.add(node.module)
    allowed = {f"reprise.speculative.{pure}" for pure in PURE}
    assert [module for module in imported - allowed if module.split(".")[0] not in sys.stdlib_module_names] == []


def test_every_file_is_pure_or_about_tensors() -> None:
    tensors = {"__init__", "continuation", "retained_prefix"}
    assert {path.stem for path in FOLDER.glob("*.py")} == tensors | set(PURE)
