"""Pairs of a source and a target prompt, and a studio that makes their clips as the server would.

The recipes that calibrate reuse share it. A clip is planned by `plan_reuse` from a stored source, so the second gate,
the differing words and the masks of the bundled segmenter are part of what is measured. Knows nothing about what is
calibrated.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from actors.engines.open_clip import OpenClipEmbedder
from actors.engines.tiny_segmenter import TinySegmenter
from actors.mask_generator import MaskEngineName, MaskGeneratorConfig, MaskGeneratorReplica
from reprise.chorus.clip import Clip, ClipSpec, generate_clip
from reprise.chorus.gains import AmplificationConfig
from reprise.chorus.mask_codec import unpack_mask
from reprise.chorus.objects import object_phrases
from reprise.chorus.plan import Candidate, MissReason, ReusePlan, plan_miss, plan_reuse
from reprise.chorus.source import Source
from reprise.chorus.stages import StageBoundaries, StageMap, StageRow
from reprise.teacache import TeaCacheConfig
from reprise.tinyworld import SceneSpec, change_one, is_held_out, sample_scene, score_video, write_prompt
from reprise.wan.model import WanModel, load
from reprise.wan.presets import WEIGHTS, ModelPreset, tiny, tiny_4step

PRESETS: Final = {"tiny": tiny, "tiny-4step": tiny_4step}
SEGMENTER: Final = str(WEIGHTS / "tiny_segmenter")
PARAPHRASE_SHARE: Final = 0.3
POOL: Final = 300
"""Sources among which a stranger's nearest neighbour is looked for; more would leave the lower bins empty."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A source, a target that may start from it, and their matching score."""

    source: str
    target: str
    source_scene: SceneSpec
    scene: SceneSpec
    """What the target must show."""
    score: float
    seed: int


def draw_pairs(count: int, *, edges: Sequence[float], seed: int, edits_only: bool = False) -> list[Pair]:
    """Draw `count` pairs of every bin of m that begins at an edge.

    Every second one is an edit, of a held-out target one attribute away or merely reworded, as within one person's
    session; the others are strangers: a target and its nearest neighbour among sources drawn like it.
    """
    embedder = OpenClipEmbedder(f"local-dir:{WEIGHTS / 'tiny_clip'}")
    rng = np.random.default_rng(seed)
    pool = [] if edits_only else [sample_scene(rng) for _ in range(POOL)]
    pool_prompts = [write_prompt(scene, rng) for scene in pool]
    pool_vectors = np.stack([embedder.embed(prompt) for prompt in pool_prompts]) if pool else None
    pairs: list[Pair] = []
    rooms = {is_edit: [(count + is_edit) // 2] * len(edges) for is_edit in (True, False)}
    if edits_only:
        rooms = {True: [count] * len(edges)}
    while any(any(room) for room in rooms.values()):
        is_edit = any(rooms[True]) and (edits_only or len(pairs) % 2 == 0 or not any(rooms[False]))
        if is_edit or pool_vectors is None:
            source_scene = sample_scene(rng, num_objects=1)
            reworded = not edits_only and rng.random() < PARAPHRASE_SHARE
            scene = source_scene if reworded else change_one(source_scene, rng)
            if not is_held_out(scene):
                continue
            source, target = write_prompt(source_scene, rng), write_prompt(scene, rng)
            score = float(embedder.embed(source) @ embedder.embed(target))
        else:
            scene = sample_scene(rng)
            target = write_prompt(scene, rng)
            scores = pool_vectors @ embedder.embed(target)
            place = int(scores.argmax())
            source_scene, source, score = pool[place], pool_prompts[place], float(scores[place])
        bin_ = int(np.searchsorted(edges, score, side="right")) - 1
        if bin_ >= 0 and rooms[is_edit][bin_]:
            rooms[is_edit][bin_] -= 1
            pairs.append(
                Pair(
                    source=source,
                    target=target,
                    source_scene=source_scene,
                    scene=scene,
                    score=score,
                    seed=seed + len(pairs),
                )
            )
    return pairs


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StoredSource:
    """A source as the stores hold it."""

    candidate: Candidate
    trajectory: dict[int, torch.Tensor]
    masks: dict[str, torch.Tensor]
    """Pixel masks (F, H, W) by phrase."""


class Studio:
    """One model in this process, with sources made and reused as the server does."""

    def __init__(self, preset: ModelPreset, *, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self.model: WanModel = load(preset)
        config = MaskGeneratorConfig(engine=MaskEngineName.TINY_SEGMENTER, segmenter=SEGMENTER)
        self._masks = MaskGeneratorReplica(config, TinySegmenter(SEGMENTER))

    def amplify(self, setting: AmplificationConfig | None) -> None:
        """Amplify the differing words of later clips by this setting."""
        preset = dataclasses.replace(self.model.preset, amplification=setting)
        self.model = dataclasses.replace(self.model, preset=preset)

    def spec(self, prompt: str, seed: int) -> ClipSpec:
        """Ask for a clip with the preset's defaults."""
        preset = self.model.preset
        width, height = preset.sizes[preset.default_size]
        return ClipSpec(
            prompt=prompt,
            negative_prompt="",
            seed=seed,
            num_steps=preset.num_inference_steps,
            guidance_scale=preset.guidance_scale,
            width=width,
            height=height,
            num_frames=preset.default_num_frames,
        )

    def full(self, prompt: str, seed: int) -> Clip:
        """Make a clip without reuse."""
        return generate_clip(self.model, self.spec(prompt, seed), plan_miss(MissReason.OFF))

    def store(self, clip: Clip, *, source_id: str, prompt: str, seed: int) -> StoredSource:
        """Keep of a clip made in full what the server keeps."""
        assert clip.trajectory is not None, "a hit stores nothing"
        found = self._masks.generate(clip.frames_FHWC, object_phrases(prompt))
        latents = dict(clip.trajectory.latents)
        return StoredSource(
            candidate=Candidate(
                source_id=source_id,
                matching_score=None,
                prompt=prompt,
                seed=seed,
                num_steps=clip.work.num_steps,
                stored_steps=tuple(sorted(latents)),
            ),
            trajectory=latents,
            masks={mask.phrase: torch.from_numpy(unpack_mask(mask.packed)) for mask in found if mask.packed},
        )

    def reuse(
        self,
        stored: StoredSource | None,
        plan: ReusePlan,
        *,
        prompt: str,
        seed: int,
        teacache: TeaCacheConfig | None = None,
    ) -> Clip:
        """Make a clip by a plan that starts from the source; in full where the plan is a miss."""
        source = None
        if plan.is_hit:
            assert stored is not None, "a hit has a source"
            mask_FHW = None if plan.region_phrase is None else stored.masks.get(plan.region_phrase)
            source = Source(points={step: stored.trajectory[step] for step in plan.source_steps}, mask_FHW=mask_FHW)
        return generate_clip(self.model, self.spec(prompt, seed), plan, source, teacache=teacache)


def plan_at(
    stored: StoredSource, boundaries: StageBoundaries, *, prompt: str, seed: int, score: float, tau: float
) -> ReusePlan:
    """Plan a target whose F is one pair of boundaries; the gate may lower them."""
    row = StageRow(min_score=-1.0, k1=boundaries.k1, k2=boundaries.k2)
    num_steps = stored.candidate.num_steps
    return plan_reuse(
        prompt=prompt,
        seed=seed,
        num_steps=num_steps,
        candidates=[dataclasses.replace(stored.candidate, matching_score=score)],
        stage_map=StageMap(tau=-1.0, num_steps=num_steps, rows=(row,)),
        tau=tau,
    )


def num_found(clip: Clip, scene: SceneSpec) -> int:
    """Count the attributes of a scene, of seven, that the exact scorer finds in a clip."""
    return len(score_video(clip.frames_FHWC, scene).found())


def keep_all(preset: ModelPreset, steps: Sequence[int]) -> ModelPreset:
    """Give the preset that stores every one of these steps, whatever its own F asks for."""
    width = (1 - preset.tau) / (len(steps) + 1)
    rows = tuple(StageRow(min_score=preset.tau + width * i, k1=step, k2=step) for i, step in enumerate(steps))
    stage_map = StageMap(tau=preset.tau, num_steps=preset.num_inference_steps, rows=rows)
    return dataclasses.replace(preset, stage_map=stage_map)
