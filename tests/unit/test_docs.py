"""README and docs against the tree: what they name exists, links lead somewhere, code in them is code."""

import ast
import dataclasses
import importlib
import importlib.util
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from deployments.api.facts import FailureCode, ReuseFacts, StageSeconds
from deployments.api.schema import VideoCreate
from deployments.config import AppConfig
from reprise.chorus.plan import MissReason

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FOLDERS = "actors|benchmarks|cache_store|deploy|deployments|docs|load_tests|reprise|scripts|tests|training"

page_of = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def code_blocks(page: pathlib.Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def prose(page: pathlib.Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@page_of
def test_relative_links_resolve(page: pathlib.Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, fragment = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        if fragment:
            assert fragment in {
                anchor(line.lstrip("# ")) for line in linked.read_text().splitlines() if line[:1] == "#"
            }


@page_of
def test_named_files_exist(page: pathlib.Path) -> None:
    named = re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./-]*", page.read_text())
    named += re.findall(r"`(cluster\.yaml|Makefile|pyproject\.toml|LICENSE)`", page.read_text())
    missing = [name for name in named if not (ROOT / name.rstrip(".")).exists()]
    assert not missing, missing


@page_of
def test_named_functions_exist(page: pathlib.Path) -> None:
    for path, name in re.findall(r"`([\w/]+)\.py:([\w.]+)`", page.read_text()):
        found: Any = importlib.import_module(path.replace("/", "."))
        for part in name.split("."):
            assert hasattr(found, part), f"{path}.py:{name}"
            found = getattr(found, part)


@page_of
def test_named_modules_exist(page: pathlib.Path) -> None:
    text = page.read_text()
    modules = set(re.findall(rf"`((?:{FOLDERS})\.\w+)`", text)) | set(
        re.findall(r"python -m ((?!pip|venv)[\w.]+)", text)
    )
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    assert not missing, missing


@page_of
def test_named_make_targets_exist(page: pathlib.Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([\w-]+)`", page.read_text())) | set(
        re.findall(r"^make (\w+)$", page.read_text(), re.M)
    )
    assert named <= targets


@page_of
def test_python_blocks_compile(page: pathlib.Path) -> None:
    for block in code_blocks(page, "python"):
        ast.parse(block)


@page_of
def test_yaml_blocks_are_configurations(page: pathlib.Path) -> None:
    for block in code_blocks(page, "yaml"):
        AppConfig.model_validate(yaml.safe_load(block))


@page_of
def test_pages_are_ascii_and_their_lines_fit(page: pathlib.Path) -> None:
    assert page.read_text().isascii()
    # A table row or a link cannot be broken.
    long = [line for line in page.read_text().splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long, long


def test_the_tree_in_the_readme_exists() -> None:
    (tree,) = code_blocks(ROOT / "README.md", "tree")
    folder = ROOT
    for line in tree.splitlines():
        name, _, comment = line.strip().partition(" ")
        assert comment.strip(), f"{name} has no comment"
        if not line.startswith(" "):
            folder = ROOT / name if name.endswith("/") else ROOT
            assert (ROOT / name).exists(), line
        else:
            assert (folder / name).exists(), line


def test_the_tree_names_every_folder_of_the_project() -> None:
    (tree,) = code_blocks(ROOT / "README.md", "tree")
    named = {line.split()[0].rstrip("/") for line in tree.splitlines() if not line.startswith(" ")}
    assert set(FOLDERS.split("|")) <= named


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_configuration_key_is_described() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert [key for key in keys(AppConfig) if f"`{key}`" not in text] == []


def test_everything_the_api_says_or_takes_is_described() -> None:
    text = (ROOT / "docs" / "http-api.md").read_text()
    names: list[str] = [*FailureCode, *MissReason, *VideoCreate.model_fields]
    names += [field.name for kind in (ReuseFacts, StageSeconds) for field in dataclasses.fields(kind)]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_paper_map_gives_each_function_a_test() -> None:
    text = (ROOT / "docs" / "paper_map.md").read_text()
    rows = re.findall(r"^\|.*\.py:.*\|$", text.split("## Where we differ")[0], re.MULTILINE)
    assert len(rows) >= 8
    for row in rows:
        assert re.search(r"`tests/[\w/]+\.py`", row), row
