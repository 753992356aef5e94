"""How well the bundled model follows prompts it never saw: `python -m benchmarks.tiny_quality [--json]`.

Scenes that training held out, in random wordings, generated in full (no reuse) and read back by the exact scorer.
A share counts prompts; with two objects both must be right.
"""

import concurrent.futures
import dataclasses
import multiprocessing

import numpy as np
import torch

from benchmarks.report import Report, Scalar, argument_parser, publish
from reprise.chorus.clip import ClipSpec, generate_clip
from reprise.chorus.plan import MissReason, plan_miss
from reprise.tinyworld import AttributeScore, SceneSpec, is_held_out, sample_scene, score_video, write_prompt
from reprise.wan.model import WanModel, load
from training.pairs import PRESETS

ATTRIBUTES = tuple(field.name for field in dataclasses.fields(AttributeScore))

_model: WanModel | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One prompt to try; all but scene, prompt and seed are the same for all of a run."""

    preset: str
    scene: SceneSpec
    prompt: str
    seed: int
    num_steps: int
    guidance_scale: float


def draw_tasks(
    preset: str, count: int, *, num_objects: int, seed: int, num_steps: int, guidance_scale: float
) -> list[Task]:
    """Draw held-out scenes and word them."""
    rng = np.random.default_rng((seed, num_objects))
    tasks: list[Task] = []
    while len(tasks) < count:
        scene = sample_scene(rng, num_objects=num_objects)
        if is_held_out(scene):
            prompt = write_prompt(scene, rng)
            tasks.append(
                Task(
                    preset=preset,
                    scene=scene,
                    prompt=prompt,
                    seed=seed + len(tasks),
                    num_steps=num_steps,
                    guidance_scale=guidance_scale,
                )
            )
    return tasks


def run_task(task: Task) -> AttributeScore:
    """Generate one clip in a worker process, which loads the model once, and score it."""
    global _model
    if _model is None:
        torch.set_num_threads(1)
        _model = load(PRESETS[task.preset]())
    preset = _model.preset
    width, height = preset.sizes[preset.default_size]
    spec = ClipSpec(
        prompt=task.prompt,
        negative_prompt="",
        seed=task.seed,
        num_steps=task.num_steps,
        guidance_scale=task.guidance_scale,
        width=width,
        height=height,
        num_frames=preset.default_num_frames,
    )
    return score_video(generate_clip(_model, spec, plan_miss(MissReason.OFF)).frames_FHWC, task.scene)


def shares(scores: list[AttributeScore]) -> dict[str, float]:
    """Give the share of clips in which each attribute is right."""
    return {name: float(np.mean([getattr(score, name) for score in scores])) for name in ATTRIBUTES}


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--clips", type=int, default=200, help="single-object prompts")
    parser.add_argument("--two-object-clips", type=int, default=60)
    parser.add_argument("--steps", type=int, help="by default the preset's, as the guidance")
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    options = parser.parse_args()
    preset = PRESETS[options.preset]()
    num_steps = options.steps or preset.num_inference_steps
    guidance_scale = preset.guidance_scale if options.guidance is None else options.guidance
    single, double = (
        draw_tasks(
            options.preset,
            count,
            num_objects=objects,
            seed=options.seed,
            num_steps=num_steps,
            guidance_scale=guidance_scale,
        )
        for count, objects in ((options.clips, 1), (options.two_object_clips, 2))
    )
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        scores = list(pool.map(run_task, [*single, *double]))
    one, two = scores[: len(single)], scores[len(single) :]
    rows: list[dict[str, Scalar]] = [{"objects": 1, "clips": len(one), **shares(one)}]
    if two:
        rows.append({"objects": 2, "clips": len(two), **shares(two)})
    summary = {f"single_{name}": share for name, share in shares(one).items()}
    summary["single_shape_colour_background"] = float(np.mean([s.shape and s.colour and s.background for s in one]))
    if two:
        summary["two_object_pairs"] = float(np.mean([score.shape and score.colour for score in two]))
    summary["clips"] = len(one)
    publish(
        Report(
            name="tiny_quality",
            parameters={
                "preset": preset.name,
                "steps": num_steps,
                "guidance_scale": guidance_scale,
                "num_frames": preset.default_num_frames,
                "reuse": "off",
            },
            rows=rows,
            summary=summary,
        ),
        options,
    )


if __name__ == "__main__":
    main()
