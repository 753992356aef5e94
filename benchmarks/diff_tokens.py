"""How well each engine finds the words that differ between two prompts: `python -m benchmarks.diff_tokens [--json]`.

Real edit pairs, whose labels are an edit script over words, and pairs of the tiny world worded apart, whose labels are
what really changed. `f1` counts words that carry meaning; `f1_all_words` also counts articles and prepositions, which
the aligner leaves out on purpose. The aligner was made with `vidprom_mined` and the tiny world in view; the summary
is of the other sets alone. A language model is asked when `--base-url` names an OpenAI-compatible endpoint.
"""

import argparse
import asyncio
import dataclasses
import json
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from actors.diff_extractor import DiffFault
from actors.engines.llm_diff import LlmDiffEngine
from benchmarks.report import Report, Scalar, argument_parser, publish
from load_tests.traces import DATA
from reprise.chorus.english import FUNCTION_WORDS
from reprise.chorus.phrases import PromptWord, parse_prompt
from reprise.chorus.prompt_diff import TokenDiff, align_diff
from reprise.tinyworld import change_one, sample_scene, write_prompt
from reprise.tinyworld.grammar import BACKGROUND_WORDS, COLOUR_WORDS, MOTION_WORDS, SHAPE_WORDS, SIZE_WORDS
from reprise.tinyworld.scene import SceneSpec

SEEN: Final = ("vidprom_mined",)
"""Sets that the aligner was improved on."""
UNSEEN: Final = ("tgve_304", "diffusiondb_session")
"""Sets that it was measured on afterwards."""
ALL_UNSEEN: Final = "all unseen"
LABEL_TOKEN: Final = re.compile(r"[\w'\u2019-]+|[^\w\s]")
"""What the labels count: words with hyphens and apostrophes, and single marks."""

PATTERN_NAMES: Final = {"plain": ("plain",), "striped": ("striped", "stripes"), "gradient": ("gradient",)}
SILENT: Final = ("moves", "moving", "slides", "drifts", "stays", "is", "to", "the", "does")
"""Words of a motion that say nothing of their own beside the direction."""

Place = tuple[int, int]
"""Characters `[start, stop)` of a word."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EditPair:
    """Two prompts and the words that were changed from the one to the other."""

    source: str
    target: str
    removed: frozenset[Place]
    added: frozenset[Place]


@dataclasses.dataclass(slots=True)
class Tally:
    """Counts over words of both prompts."""

    found: int = 0
    wrong: int = 0
    missed: int = 0

    def add(self, labels: frozenset[Place], answer: frozenset[Place]) -> None:
        """Count one prompt."""
        self.found += len(labels & answer)
        self.wrong += len(answer - labels)
        self.missed += len(labels - answer)

    def precision(self) -> float:
        """Give the share of reported words that are right; 1 when none was reported."""
        return self.found / (self.found + self.wrong) if self.found + self.wrong else 1.0

    def recall(self) -> float:
        """Give the share of changed words that were reported; 1 when none was changed."""
        return self.found / (self.found + self.missed) if self.found + self.missed else 1.0

    def f1(self) -> float:
        """Give the harmonic mean of the two."""
        total = 2 * self.found + self.wrong + self.missed
        return 2 * self.found / total if total else 1.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What an engine said to one pair; None when it gave no usable answer."""

    diff: TokenDiff | None
    milliseconds: float


def words_of(prompt: str) -> list[Place]:
    """Give the places of the words as the labels count them."""
    return [match.span() for match in LABEL_TOKEN.finditer(prompt) if re.search(r"\w", match[0])]


def read_pairs(name: str) -> list[EditPair]:
    """Read a labelled set; exits with the file's name when it is not there."""
    path = DATA / "edit_pairs" / f"{name}.jsonl"
    if not path.is_file():
        raise SystemExit(f"{path} is missing: set REPRISE_DATA to the folder that holds edit_pairs/{name}.jsonl")
    return [_pair_of(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _pair_of(fields: Mapping[str, Any]) -> EditPair:
    source, target, edits = fields["source"], fields["target"], fields["edits"]
    return EditPair(
        source=source,
        target=target,
        removed=_labels(source, [edit["src_span"] for edit in edits]),
        added=_labels(target, [edit["dst_span"] for edit in edits]),
    )


def _labels(prompt: str, spans: Iterable[Sequence[int]]) -> frozenset[Place]:
    tokens = [match.span() for match in LABEL_TOKEN.finditer(prompt)]
    inside = {place for start, stop in spans for place in tokens[start:stop]}
    return frozenset(inside.intersection(words_of(prompt)))


def tiny_pairs(count: int, *, seed: int) -> list[EditPair]:
    """Word scenes twice, each wording drawn anew: one in five the same scene, the others one attribute apart."""
    rng = np.random.default_rng((seed, 3))
    pairs = []
    for _ in range(count):
        scene = sample_scene(rng, num_objects=1)
        other = scene if rng.random() < 0.2 else change_one(scene, rng)
        source, target = write_prompt(scene, rng), write_prompt(other, rng)
        removed, added = _attribute_words(source, scene, other), _attribute_words(target, other, scene)
        pairs.append(EditPair(source=source, target=target, removed=removed, added=added))
    return pairs


def _attribute_words(prompt: str, scene: SceneSpec, other: SceneSpec) -> frozenset[Place]:
    """Find the words of an attribute that the other scene has not; none when it goes without saying."""
    item, rival = scene.objects[0], other.objects[0]
    place = re.search(r"(?:[\w-]+ ){1,4}(?:background|backdrop)(?: with (?:stripes|a gradient))?", prompt)
    assert place is not None
    object_part = prompt[: place.start()] + " " * len(place[0]) + prompt[place.end() :]
    backdrop = " " * place.start() + place[0]
    if scene.pattern != other.pattern:
        return _find(backdrop, PATTERN_NAMES[scene.pattern])
    if scene.background != other.background:
        return _find(backdrop, BACKGROUND_WORDS[scene.background])
    tables: Mapping[str, Mapping[str, tuple[str, ...]]] = {
        "shape": SHAPE_WORDS,
        "colour": COLOUR_WORDS,
        "size": SIZE_WORDS,
        "motion": MOTION_WORDS,
    }
    for name, table in tables.items():
        if getattr(item, name) != getattr(rival, name):
            return _find(object_part, table[getattr(item, name)])
    return frozenset()


def _find(text: str, options: Iterable[str]) -> frozenset[Place]:
    """Find the words of the longest option that is there."""
    for option in sorted(filter(None, options), key=len, reverse=True):
        match = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text)
        if match:
            places = [(match.start() + start, match.start() + stop) for start, stop in words_of(match[0])]
            silent = () if "not" in option else SILENT
            return frozenset(place for place in places if text[slice(*place)] not in silent)
    return frozenset()


def score(pairs: Sequence[EditPair], answers: Sequence[Answer]) -> dict[str, Scalar]:
    """Compare answers with labels, as one row of the report."""
    content, everything, num_exact = Tally(), Tally(), 0
    for pair, answer in zip(pairs, answers, strict=True):
        exact = True
        for prompt, labels, words in (
            (pair.source, pair.removed, answer.diff.removed if answer.diff else ()),
            (pair.target, pair.added, answer.diff.added if answer.diff else ()),
        ):
            said = _said(prompt, words)
            everything.add(labels, said)
            labels, said = _with_meaning(prompt, labels), _with_meaning(prompt, said)
            content.add(labels, said)
            exact = exact and labels == said
        num_exact += exact
    return {
        "pairs": len(pairs),
        "precision": content.precision(),
        "recall": content.recall(),
        "f1": content.f1(),
        "exact": num_exact / len(pairs),
        "f1_all_words": everything.f1(),
        "median_ms": statistics.median(answer.milliseconds for answer in answers),
        "unanswered": sum(answer.diff is None for answer in answers),
    }


def _said(prompt: str, words: Iterable[PromptWord]) -> frozenset[Place]:
    spans = [(word.start, word.stop) for word in words]
    return frozenset((start, stop) for start, stop in words_of(prompt) if any(a < stop and start < b for a, b in spans))


def _with_meaning(prompt: str, places: Iterable[Place]) -> frozenset[Place]:
    return frozenset(place for place in places if prompt[slice(*place)].lower() not in FUNCTION_WORDS)


def ask_aligner(pairs: Iterable[EditPair]) -> list[Answer]:
    """Run the aligner; nothing is remembered from one pair to the next."""
    answers = []
    for pair in pairs:
        parse_prompt.cache_clear()
        begin = time.perf_counter()
        diff = align_diff(pair.source, pair.target)
        answers.append(Answer(diff=diff, milliseconds=1_000 * (time.perf_counter() - begin)))
    return answers


async def ask_model(pairs: Iterable[EditPair], engine: LlmDiffEngine, *, deadline_s: float) -> list[Answer]:
    """Ask the model for one pair after the other; what is late or does not fit the prompts is no answer."""
    answers = []
    for pair in pairs:
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(deadline_s):
                diff: TokenDiff | None = await engine.diff(pair.source, pair.target)
        except (TimeoutError, ValueError, DiffFault):
            diff = None
        answers.append(Answer(diff=diff, milliseconds=1_000 * (time.perf_counter() - begin)))
    return answers


def run(options: argparse.Namespace) -> Report:
    """Measure the aligner on everything, and the model on the first pairs of every set when there is an endpoint."""
    sets = {name: read_pairs(name) for name in (*SEEN, *UNSEEN)}
    sets["tiny_world"] = tiny_pairs(options.tiny_pairs, seed=options.seed)
    rows = measure("aligner", sets, ask_aligner)
    summary = _summary_of("aligner", rows) | dict.fromkeys(("llm_f1", "llm_ms"))
    notes = ["labels of the real pairs are an edit script: moved words and inflections count as changed there"]
    if options.base_url:
        first = {name: pairs[: options.llm_pairs] for name, pairs in sets.items()}
        rows += measure("llm", first, lambda pairs: asyncio.run(_ask_model_of(options, pairs)))
        summary |= _summary_of("llm", rows)
        notes.append(
            f"the model was asked about the first {options.llm_pairs} pairs of every set, the aligner about all"
        )
    else:
        notes.append("no --base-url: no language model was asked")
    names = ("tiny_pairs", "base_url", "model", "llm_pairs", "deadline_s")
    return Report(
        name="diff_tokens",
        parameters={name: getattr(options, name) for name in names},
        rows=rows,
        summary=summary,
        notes=notes,
    )


def measure(
    engine: str, sets: Mapping[str, Sequence[EditPair]], ask: Callable[[Sequence[EditPair]], list[Answer]]
) -> list[dict[str, Scalar]]:
    """Give one row per set, and one of all pairs that the aligner was not improved on."""
    answers = {name: ask(pairs) for name, pairs in sets.items()}
    rows: list[dict[str, Scalar]] = [
        {"engine": engine, "set": name, "seen": name not in UNSEEN, **score(pairs, answers[name])}
        for name, pairs in sets.items()
    ]
    unseen = score(
        [pair for name in UNSEEN for pair in sets[name]], [answer for name in UNSEEN for answer in answers[name]]
    )
    return [*rows, {"engine": engine, "set": ALL_UNSEEN, "seen": False, **unseen}]


def _summary_of(engine: str, rows: Iterable[Mapping[str, Scalar]]) -> dict[str, Scalar]:
    (row,) = (row for row in rows if (row["engine"], row["set"]) == (engine, ALL_UNSEEN))
    return {f"{engine}_f1": row["f1"], f"{engine}_ms": row["median_ms"]}


async def _ask_model_of(options: argparse.Namespace, pairs: Sequence[EditPair]) -> list[Answer]:
    engine = LlmDiffEngine(options.base_url, options.model)
    try:
        return await ask_model(pairs, engine, deadline_s=options.deadline_s)
    finally:
        await engine.close()


def main() -> None:
    """Parse the options and print the report."""
    parser = argument_parser("Precision, recall and time of finding the words that differ between two prompts.")
    parser.add_argument("--tiny-pairs", type=int, default=500, help="pairs of the tiny world")
    parser.add_argument("--base-url", default="", help="an OpenAI-compatible endpoint, up to /v1")
    parser.add_argument("--model", default="", help="name under which the endpoint serves the model")
    parser.add_argument("--llm-pairs", type=int, default=100, help="pairs of every set that the model is asked")
    parser.add_argument("--deadline-s", type=float, default=60.0, help="longest time for one answer of the model")
    options = parser.parse_args()
    if bool(options.base_url) != bool(options.model):
        parser.error("--base-url and --model go together")
    publish(run(options), options)


if __name__ == "__main__":
    main()
