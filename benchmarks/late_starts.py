"""How late a target can start from its source, by what changes: `python -m benchmarks.late_starts [--json]`.

What the second gate's caps rest on. Pairs of the tiny world that differ in one thing, the target resumed from the
source's latent at every candidate step; neither F nor the gate is asked. `attributes` are those of the target, of
seven, that the exact scorer finds, `asked` is the share of clips that show the very attribute that changed.
"""

import dataclasses
import statistics
from collections.abc import Iterator
from typing import Final

import numpy as np

from benchmarks.report import Report, Scalar, argument_parser, publish
from reprise.chorus.plan import ReusePlan
from reprise.chorus.prompt_diff import align_diff
from reprise.chorus.stages import StageBoundaries
from reprise.tinyworld import SceneSpec, change_one, is_held_out, sample_scene, score_video, write_prompt
from training.pairs import PRESETS, Studio, keep_all
from training.stage_map import CANDIDATES

SINGLE: Final = ("colour", "background", "pattern", "shape", "motion", "size")
KINDS: Final = (*SINGLE, "one more", "one less", "swap")
EMBEDDED_SCORE: Final = 0.9
"""A matching score in every plan, which only amplification would read."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Two scenes that differ in one thing."""

    kind: str
    source: SceneSpec
    target: SceneSpec

    @property
    def asked(self) -> str:
        """Name the attribute of the scorer that the change is about."""
        return {"one more": "count", "one less": "count", "swap": "colour"}.get(self.kind, self.kind)


def draw_changes(count: int, *, rng: np.random.Generator) -> Iterator[Change]:
    """Draw `count` changes of every kind; single-object targets are held out."""
    room = dict.fromkeys(SINGLE, count)
    while any(room.values()):
        source = sample_scene(rng, num_objects=1)
        target = change_one(source, rng)
        kind = _kind_of(source, target)
        if kind in room and room[kind] and is_held_out(target):
            room[kind] -= 1
            yield Change(kind=kind, source=source, target=target)
    for _ in range(count):
        both = sample_scene(rng, num_objects=2)
        one = dataclasses.replace(both, objects=both.objects[:1])
        first, second = both.objects
        turned = dataclasses.replace(
            both,
            objects=(
                dataclasses.replace(first, colour=second.colour),
                dataclasses.replace(second, colour=first.colour),
            ),
        )
        yield Change(kind="one more", source=one, target=both)
        yield Change(kind="one less", source=both, target=one)
        yield Change(kind="swap", source=turned, target=both)


def _kind_of(source: SceneSpec, target: SceneSpec) -> str:
    if len(source.objects) != len(target.objects):
        return "count"
    changed = [
        name
        for name in SINGLE
        if (getattr(source, name) if hasattr(source, name) else getattr(source.objects[0], name))
        != (getattr(target, name) if hasattr(target, name) else getattr(target.objects[0], name))
    ]
    return changed[0] if len(changed) == 1 else "several"


def measure(
    studio: Studio, change: Change, *, steps: tuple[int, ...], seed: int, rng: np.random.Generator
) -> Iterator[tuple[int, int, bool]]:
    """Yield step, attributes found and whether the asked one is among them; step 0 is the target in full."""
    source, target = write_prompt(change.source, rng), write_prompt(change.target, rng)
    stored = studio.store(studio.full(source, seed), source_id="s", prompt=source, seed=seed)
    target_seed = seed + 1_000_000
    for step in (0, *steps):
        if step == 0:
            clip = studio.full(target, target_seed)
        else:
            plan = ReusePlan(
                boundaries=StageBoundaries(k1=step, k2=step),
                source_id="s",
                source_seed=seed,
                matching_score=EMBEDDED_SCORE,
                diff=align_diff(source, target),
                source_steps=(step,),
            )
            clip = studio.reuse(stored, plan, prompt=target, seed=target_seed)
        score = score_video(clip.frames_FHWC, change.target)
        yield step, len(score.found()), getattr(score, change.asked)


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny-4step")
    parser.add_argument("--pairs", type=int, default=40, help="of every kind")
    options = parser.parse_args()
    preset = PRESETS[options.preset]()
    steps = CANDIDATES[preset.num_inference_steps]
    studio = Studio(keep_all(preset, steps))
    rng = np.random.default_rng(options.seed)
    found: dict[tuple[str, int], list[tuple[int, bool]]] = {}
    for number, change in enumerate(draw_changes(options.pairs, rng=rng)):
        for step, attributes, has_asked in measure(studio, change, steps=steps, seed=options.seed + number, rng=rng):
            found.setdefault((change.kind, step), []).append((attributes, has_asked))
    rows: list[dict[str, Scalar]] = [
        {
            "kind": kind,
            "k1": step,
            "pairs": len(found[kind, step]),
            "attributes": statistics.fmean(attributes for attributes, _ in found[kind, step]),
            "asked": statistics.fmean(has_asked for _, has_asked in found[kind, step]),
        }
        for kind in KINDS
        for step in (0, *steps)
    ]
    means = {(row["kind"], row["k1"]): float(str(row["attributes"])) for row in rows}
    middle = steps[len(steps) // 2]
    publish(
        Report(
            name="late_starts",
            parameters={"preset": preset.name, "pairs": options.pairs, "steps": preset.num_inference_steps},
            rows=rows,
            summary={
                f"loss_{step}_{kind.replace(' ', '_')}": means[kind, 0] - means[kind, step]
                for kind in KINDS
                for step in (steps[0], middle)
            },
            notes=["two objects at once are right in about two thirds of full runs, so their losses are noisy"],
        ),
        options,
    )


if __name__ == "__main__":
    main()
