"""What a load test asks for: a stream of prompts with the habits of people who try prompts out.

A session stays with a topic: it rolls the same prompt again with another seed, edits one attribute, or turns to a new
topic. Topics are few and unevenly liked, so sessions meet. Drawn from a seed, or read from a JSONL file with a
`prompt` a line. Knows nothing about HTTP, Locust or reuse.
"""

import dataclasses
import enum
import json
import os
import pathlib
from collections.abc import Iterator
from itertools import islice
from typing import Final, cast

import numpy as np

from reprise.tinyworld import SceneSpec, change_one, sample_scene, write_prompt

DATA: Final = pathlib.Path(os.environ.get("REPRISE_DATA", "../shared/data"))
"""Where a trace is looked for that is not in the current folder."""

CLUSTER_TRACE: Final = "traces/vidprom_cluster_2000.jsonl"
"""Real prompts of one theme in the order they were written."""
MINILM_TAU: Final = 0.60
"""Where their similarity begins by all-MiniLM-L6-v2, whose cosines run lower than CLIP's; the paper has 0.65."""


class Kind(enum.StrEnum):
    """How a request relates to the one before it in its session."""

    FIRST = "first"
    REROLL = "reroll"
    """The same prompt; every request of a trace has its own seed."""
    EDIT = "edit"
    """The same wording with one attribute changed."""
    TOPIC = "topic"
    """Another topic, same session."""
    LISTED = "listed"
    """A line of a file, which says nothing of it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TraceItem:
    """One request: `index` counts from 0 and is also its seed."""

    index: int
    session: int
    kind: Kind
    prompt: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SessionMix:
    """Shares of the kinds; what is left over are edits."""

    first: float = 0.25
    reroll: float = 0.15
    topic: float = 0.10
    num_open: int = 6
    """Sessions that go on side by side."""
    num_topics: int = 40
    topic_decay: float = 1.0
    """Topic k is liked in proportion to 1 / k to this power."""

    def __post_init__(self) -> None:
        shares = (self.first, self.reroll, self.topic)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(f"shares must not be negative and sum to at most 1, got {shares}")
        if self.num_open < 1 or self.num_topics < 1:
            raise ValueError(f"expected at least one session and topic, got {self.num_open} and {self.num_topics}")


def theme_mix() -> SessionMix:
    """Give one theme, the whole tiny world, by people who do not know each other: no prompt follows from another."""
    return SessionMix(first=1.0, reroll=0.0, topic=0.0, num_topics=2000, topic_decay=0.0)


MIXES: Final = {"tiny": SessionMix, "tiny-theme": theme_mix}
"""Traces that are drawn, by name."""

FILES: Final = {"cluster": CLUSTER_TRACE}
"""Traces that are read and do not come with the project, by name."""


class _Wording:
    """Stands in for a generator in `write_prompt`: the same seed words every scene alike.

    numpy's own takes a varying number of bits for a choice, so one attribute with fewer synonyms would reword the rest.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def integers(self, high: int) -> int:
        """Choose below `high` with exactly one draw."""
        return int(self._rng.random() * high)


@dataclasses.dataclass(slots=True)
class _Session:
    number: int
    scene: SceneSpec
    wording: int
    """Seed of the wording: an edit changes the words of one attribute and not the whole sentence."""


def tiny_trace(seed: int, mix: SessionMix | None = None) -> Iterator[TraceItem]:
    """Yield requests of the tiny world without end; equal seeds give equal traces."""
    mix = mix or SessionMix()
    rng = np.random.default_rng((seed, 7))
    topics = [sample_scene(rng) for _ in range(mix.num_topics)]
    weights = np.arange(1, mix.num_topics + 1, dtype=np.float64) ** -mix.topic_decay
    weights /= weights.sum()

    def turn_to_topic(number: int) -> _Session:
        return _Session(number, topics[int(rng.choice(mix.num_topics, p=weights))], int(rng.integers(2**31)))

    sessions: list[_Session] = []
    num_sessions, index = 0, 0
    while True:
        draw = rng.random()
        if not sessions or draw < mix.first:
            session, kind = turn_to_topic(num_sessions), Kind.FIRST
            num_sessions += 1
            sessions = [*sessions[-(mix.num_open - 1) :], session] if mix.num_open > 1 else [session]
        else:
            place = int(rng.integers(len(sessions)))
            session = sessions[place]
            if draw < mix.first + mix.reroll:
                kind = Kind.REROLL
            elif draw < mix.first + mix.reroll + mix.topic:
                session, kind = turn_to_topic(session.number), Kind.TOPIC
            else:
                session = dataclasses.replace(session, scene=change_one(session.scene, rng))
                kind = Kind.EDIT
            sessions[place] = session
        prompt = write_prompt(session.scene, cast(np.random.Generator, _Wording(session.wording)))
        yield TraceItem(index=index, session=session.number, kind=kind, prompt=prompt)
        index += 1


def open_trace(name: str, *, seed: int, num_requests: int) -> Iterator[TraceItem]:
    """Give the trace of that name, cut after `num_requests` unless that is 0; refuse one that is too short."""
    if name in MIXES:
        return islice(tiny_trace(seed, MIXES[name]()), num_requests or None)
    items = file_trace(pathlib.Path(FILES.get(name, name)))
    if num_requests > len(items):
        raise ValueError(f"{name} has {len(items)} prompts, {num_requests} requests were asked for: ask for fewer")
    return iter(items[: num_requests or None])


def file_trace(path: pathlib.Path) -> list[TraceItem]:
    """Read a trace of one JSON object a line; a relative path may also lie in the folder `REPRISE_DATA`."""
    found = next((candidate for candidate in (path, DATA / path) if candidate.is_file()), None)
    if found is None:
        raise FileNotFoundError(f"no trace {path}, here or in {DATA}: give a path, or set REPRISE_DATA to its folder")
    items: list[TraceItem] = []
    sessions: dict[object, int] = {}
    for number, line in enumerate(found.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        fields = json.loads(line)
        prompt = fields.get("prompt") if isinstance(fields, dict) else None
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(
                f"{found}:{number}: expected an object with a `prompt` that is not blank, got {line[:80]!r}"
            )
        session = sessions.setdefault(fields.get("user", number), len(sessions))
        items.append(TraceItem(index=len(items), session=session, kind=Kind.LISTED, prompt=prompt))
    if not items:
        raise ValueError(f"{found} holds no prompts")
    return items
