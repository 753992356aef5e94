"""What reuse between requests gains: `python -m benchmarks.chorus_table1 [--json]` (Chorus, section 4.2, table 1).

One stream of prompts of the tiny world is served by every policy, on the 4-step and on the 50-step model, request by
request in turn, so that times are taken side by side. Cold starts with an empty cache and stores its misses; warm
starts with as many sources as the stream is long, drawn from the same mix, and stores nothing, as in the paper.
Embedding, index, plan, masks and denoising are the product's own, in one process; a replica adds what
`benchmarks.overhead` measures.
"""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Final

from actors.engines.open_clip import OpenClipEmbedder
from benchmarks.quality import ClipQuality, Judge, summarise
from benchmarks.replay import DryCache, Request
from benchmarks.report import Report, Scalar, argument_parser, publish
from load_tests.traces import theme_mix, tiny_trace
from reprise.chorus.clip import Clip
from reprise.chorus.plan import Candidate, ReuseMode, plan_reuse
from reprise.teacache import TeaCacheConfig
from reprise.tinyworld import SceneSpec, read_prompt
from reprise.wan.presets import WEIGHTS, ModelPreset, tiny, tiny_4step
from training.pairs import StoredSource, Studio

WARM_SEED: Final = 1_000_003
POINTS: Final = 100


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A row of the table."""

    name: str
    mode: ReuseMode
    is_warm: bool = False
    has_teacache: bool = False


POLICIES: Final = (
    Policy(name="none", mode=ReuseMode.OFF),
    Policy(name="TeaCache", mode=ReuseMode.OFF, has_teacache=True),
    Policy(name="NIRVANA (0)", mode=ReuseMode.NIRVANA),
    Policy(name="NIRVANA (warm)", mode=ReuseMode.NIRVANA, is_warm=True),
    Policy(name="Chorus (0)", mode=ReuseMode.CHORUS),
    Policy(name="Chorus (warm)", mode=ReuseMode.CHORUS, is_warm=True),
    Policy(name="Chorus (warm) + TeaCache", mode=ReuseMode.CHORUS, is_warm=True, has_teacache=True),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """One request under one policy."""

    quality: ClipQuality
    is_hit: bool
    has_region: bool
    token_share: float
    denoise_s: float
    end_to_end_s: float


class Arm:
    """One policy with its own cache."""

    def __init__(self, policy: Policy, studio: Studio, embedder: OpenClipEmbedder, teacache: TeaCacheConfig) -> None:
        self.policy = policy
        self._studio, self._embedder = studio, embedder
        self._teacache = teacache if policy.has_teacache else None
        self._preset = studio.model.preset
        self._cache = DryCache(embedder.tag, self._preset.stage_map)
        self._sources: dict[str, StoredSource] = {}

    def store(self, request: Request, clip: Clip) -> None:
        """Make a clip that was computed in full a source."""
        source_id = f"video_{request.item.index}"
        stored = self._studio.store(clip, source_id=source_id, prompt=request.item.prompt, seed=request.item.index)
        self._sources[source_id] = stored
        self._cache.store(request)

    def serve(self, request: Request, judge: Judge, scene: SceneSpec) -> Served:
        """Plan and make one clip; a cold arm stores its misses, as the server does after the caller has its clip."""
        begin = time.perf_counter()
        prompt, seed = request.item.prompt, request.item.index
        plan = plan_reuse(
            prompt=prompt,
            seed=seed,
            num_steps=self._preset.num_inference_steps,
            candidates=self._nearest(prompt),
            stage_map=self._preset.stage_map,
            mode=self.policy.mode,
        )
        stored = None if plan.source_id is None else self._sources[plan.source_id]
        clip = self._studio.reuse(stored, plan, prompt=prompt, seed=seed, teacache=self._teacache)
        end_to_end_s = time.perf_counter() - begin
        if not clip.plan.is_hit and self.policy.mode is not ReuseMode.OFF and not self.policy.is_warm:
            self.store(request, clip)
        source_scene = None if stored is None else read_prompt(stored.candidate.prompt)
        return Served(
            quality=judge.judge(clip.frames_FHWC, prompt, scene, source_scene=source_scene),
            is_hit=clip.plan.is_hit,
            has_region=clip.plan.region_phrase is not None,
            token_share=clip.work.token_share,
            denoise_s=clip.work.denoise_s,
            end_to_end_s=end_to_end_s,
        )

    def _nearest(self, prompt: str) -> list[Candidate]:
        if self.policy.mode is ReuseMode.OFF:
            return []
        found = self._cache.nearest(self._embedder.embed(prompt))
        return [
            dataclasses.replace(self._sources[one.source_id].candidate, matching_score=one.matching_score)
            for one in found
        ]


def draw_requests(count: int, *, seed: int, first_index: int, embedder: OpenClipEmbedder) -> list[Request]:
    """Draw independent requests of one theme mix."""
    drawn = itertools.islice(tiny_trace(seed, theme_mix()), count)
    items = [dataclasses.replace(item, index=first_index + item.index) for item in drawn]
    return [Request(item=item, vector=embedder.embed(item.prompt), is_whole=True) for item in items]


def serve_stream(preset: ModelPreset, count: int, *, seed: int, judge: Judge) -> dict[str, list[Served]]:
    """Serve one stream by every policy, all policies in turn for each request; results by policy in order."""
    embedder = OpenClipEmbedder(f"local-dir:{WEIGHTS / 'tiny_clip'}")
    studio = Studio(preset)
    teacache = tiny().teacache
    assert teacache is not None
    arms = [Arm(policy, studio, embedder, teacache) for policy in POLICIES]
    for request in draw_requests(count, seed=seed + WARM_SEED, first_index=WARM_SEED, embedder=embedder):
        clip = studio.full(request.item.prompt, request.item.index)
        for arm in arms:
            if arm.policy.is_warm:
                arm.store(request, clip)
    served: dict[str, list[Served]] = {policy.name: [] for policy in POLICIES}
    for place, request in enumerate(draw_requests(count, seed=seed, first_index=0, embedder=embedder)):
        scene = read_prompt(request.item.prompt)
        assert scene is not None, "the mix is of the tiny world"
        shift = place % len(arms)  # so that no policy always runs on the cache lines of the same other one
        for arm in (*arms[shift:], *arms[:shift]):
            served[arm.policy.name].append(arm.serve(request, judge, scene))
    return served


def row_of(name: str, served: Sequence[Served], full: Sequence[Served], *, num_steps: int) -> dict[str, Scalar]:
    """Sum up one policy; `full` are the same requests without reuse, for ratios request by request."""
    hits = [(one, base) for one, base in zip(served, full, strict=True) if one.is_hit]
    quality = summarise([one.quality for one in served])
    return {
        "steps": num_steps,
        "policy": name,
        **quality,
        "denoise_ms": 1000 * statistics.fmean(one.denoise_s for one in served),
        "end_to_end_ms": 1000 * statistics.fmean(one.end_to_end_s for one in served),
        "speedup": ratio([base.denoise_s for base in full], [one.denoise_s for one in served]),
        "hit_rate": len(hits) / len(served),
        "region_share": sum(one.has_region for one in served) / len(served),
        "hit_ms": 1000 * statistics.fmean(one.denoise_s for one, _ in hits) if hits else None,
        "hit_speedup": ratio([base.denoise_s for _, base in hits], [one.denoise_s for one, _ in hits]),
        "hit_token_share": statistics.fmean(one.token_share for one, _ in hits) if hits else None,
        "hit_score_loss": statistics.fmean(
            POINTS * (base.quality.attributes - one.quality.attributes) for one, base in hits
        )
        if hits
        else None,
        "hit_motion_kept": ratio([one.quality.has_motion for one, _ in hits], [b.quality.has_motion for _, b in hits]),
    }


def ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    """Divide two sums; None where there is nothing to divide by."""
    return sum(above) / sum(below) if below and sum(below) else None


def summary_of(rows: Sequence[dict[str, Scalar]]) -> dict[str, float]:
    """Give the figures with a bar; loss and motion are of hits, against the same requests without reuse."""
    by_name = {(row["steps"], row["policy"]): row for row in rows}
    figures: dict[str, Scalar] = {}
    for steps in sorted({int(str(row["steps"])) for row in rows}):
        full, warm = by_name[steps, "none"], by_name[steps, "Chorus (warm)"]
        tea, nirvana = by_name[steps, "Chorus (warm) + TeaCache"], by_name[steps, "NIRVANA (warm)"]
        figures |= {
            f"hit_speedup_{steps}": warm["hit_speedup"],
            f"score_loss_{steps}": warm["hit_score_loss"],
            f"motion_kept_{steps}": warm["hit_motion_kept"],
            f"target_wins_{steps}": warm["target_wins"],
            f"hit_rate_{steps}": warm["hit_rate"],
            f"speedup_{steps}": warm["speedup"],
            f"speedup_{steps}_cold": by_name[steps, "Chorus (0)"]["speedup"],
            f"speedup_{steps}_teacache": tea["speedup"],
            f"score_loss_{steps}_teacache": float(str(full["score"])) - float(str(tea["score"])),
            f"chorus_beats_nirvana_{steps}": float(
                float(str(warm["score"])) >= float(str(nirvana["score"]))
                and float(str(warm["speedup"])) >= float(str(nirvana["speedup"]))
            ),
        }
    return {name: float(str(value)) for name, value in figures.items() if value is not None}


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--requests-4", type=int, default=200, help="of the 4-step model; 0 leaves it out")
    parser.add_argument("--requests-50", type=int, default=60, help="of the 50-step model")
    options = parser.parse_args()
    judge = Judge()
    rows: list[dict[str, Scalar]] = []
    for preset, count in ((tiny_4step(), options.requests_4), (tiny(), options.requests_50)):
        if not count:
            continue
        served = serve_stream(preset, count, seed=options.seed, judge=judge)
        full = served[POLICIES[0].name]
        steps = preset.num_inference_steps
        rows += [row_of(name, results, full, num_steps=steps) for name, results in served.items()]
    publish(
        Report(
            name="chorus_table1",
            parameters={"requests_4": options.requests_4, "requests_50": options.requests_50, "threads": 1},
            rows=rows,
            summary=summary_of(rows),
            notes=[
                "score is the share of seven attributes that the exact scorer finds, in points of 100",
                "hit_* compare hits with the same requests without reuse, in the same run",
                "denoise is the paper's latency: text encoding and every computed step",
                "TeaCache has the setting fitted to the 50-step model on both",
            ],
        ),
        options,
    )


if __name__ == "__main__":
    main()
