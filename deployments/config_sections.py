"""The sections of the application's configuration, one a part; config.py puts them together.

What a field means is said here, what follows from it is in config.py. Unknown keys are errors that name the key.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from actors.diff_extractor import DiffEngineName, DiffExtractorConfig
from reprise.flashforward.schedule import Placement
from reprise.speculative.events import Fallback


class Section(BaseModel):
    """A part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StoreSection(Section):
    """Where latents, metadata and jobs live."""

    url: str = "embedded"
    """`embedded` starts a Valkey server in the data folder; otherwise a redis://, rediss:// or unix:// URL."""
    capacity_bytes: int = Field(2 * 1024**3, gt=0)
    """Latents kept in all; beyond it the policy evicts."""
    eviction: Literal["lcbfu", "lru"] = "lcbfu"
    entry_ttl_s: int = Field(7 * 24 * 3600, gt=0)
    """Seconds a reusable entry is kept after it was stored, however often it is used."""


class EmbedderSection(Section):
    """Which open_clip model embeds prompts; by default the preset's."""

    model: str | None = None
    tau: float | None = Field(None, ge=-1, le=1)
    """Least score that is reused, the preset's thresholds moved along: for an embedder whose cosines lie elsewhere."""
    device: str = "cpu"
    num_replicas: int = Field(1, ge=1)


class DenoiserSection(Section):
    """The replicas that hold the video model; one job at a time each."""

    num_replicas: int = Field(1, ge=1)
    num_cpus: float = Field(1.0, ge=0)
    num_gpus: float = Field(0.0, ge=0)
    device: str = "cpu"
    num_threads: int = Field(1, ge=1)
    """Threads of one replica's CPU kernels."""
    memory_gib: float | None = Field(None, gt=0)
    """What a replica may use of its device; only sizes that fit are offered. None: all of it, and every size must."""
    stall_timeout_s: float = Field(600.0, gt=0)
    """A replica whose clip has not moved by a step for so long is replaced; longer than the longest step and decode."""
    teacache: bool = False
    """Leave the model's blocks out at steps that hardly change, by the preset's TeaCache setting."""


class LongSection(Section):
    """The replicas that make videos longer than a clip, where the preset has a causal model; one job at a time each."""

    enabled: bool = True
    placement: Placement = Placement.ONE_WORKER
    """`one worker` for a laptop or one GPU; with the others every replica has a gang of actors in one placement group
    run the forwards, and only decodes and encodes itself."""
    num_replicas: int = Field(1, ge=1)
    stall_timeout_s: float = Field(600.0, gt=0)
    """A replica whose video has not grown by a chunk for so long is replaced."""
    num_cpus: float = Field(0.1, ge=0)
    """Of each replica and each of its actors, as is num_gpus. Little, so that a laptop of two cores holds all replicas;
    give each its own in production."""
    num_gpus: float = Field(0.0, ge=0)
    device: str = "cpu"
    num_threads: int = Field(1, ge=1)
    """Threads of one worker's CPU kernels."""


class LiveSection(Section):
    """The groups of workers that make live streams, where the preset has a model for them; streams share a group."""

    enabled: bool = True
    num_groups: int = Field(1, ge=1)
    num_denoisers: int = Field(1, ge=1)
    """Of each group; every one samples a chunk at a time, for the stream whose next group is due first."""
    decodes_apart: bool = False
    """One more worker a group decodes and encodes, so that denoisers only sample."""
    chunk_latents: int | None = Field(None, ge=1)
    """Latents of a sampling call, K; by default the preset's. More are sampled further ahead, and are discarded at a
    change; the wait for a change grows by what the longer call takes alone."""
    group_latents: int = Field(1, ge=1)
    """Latents that are delivered together, q: what is delivered cannot be replaced any more."""
    fps: int | None = Field(None, ge=1, le=60)
    """Frames a second at which streams play; by default the preset's."""
    fallback: Fallback = Fallback.STALE
    """What is shown when a group is not ready in time."""
    margin: float = Field(0.1, ge=0)
    """Added to the estimate of a call's time, as a share of it."""
    max_load: float = Field(0.7, gt=0, le=1)
    """Share of the denoisers' time for keeping streams going, beyond which no further stream is let in."""
    vanished_s: float = Field(30.0, gt=0)
    """A stream that nobody has watched for so long ends; until then a viewer may come back."""
    max_stream_s: float = Field(3600.0, gt=0)
    event_logs: bool = False
    """Write every stream's event log into `streams` in `data_dir`; prompts are not in it."""
    num_cpus: float = Field(0.1, ge=0)
    """Of each worker, as is num_gpus."""
    num_gpus: float = Field(0.0, ge=0)
    device: str = "cpu"
    num_threads: int = Field(1, ge=1)


class MaskSection(Section):
    """Which models find a source's objects in its video; off, a hit reuses no part of a step."""

    engine: Literal["off", "tiny_segmenter", "grounded_sam"] | None = None
    """By default `tiny_segmenter` where the preset brings one, else `off`."""
    segmenter: str | None = None
    """Folder of a PhraseSegmenter, by default the preset's; for `grounded_sam` a SAM 2 checkpoint, folder or hub id."""
    detector: str | None = None
    """A Grounding DINO checkpoint, folder or hub id; for `grounded_sam`."""
    device: str = "cpu"
    num_cpus: float = Field(0.1, ge=0)
    num_gpus: float = Field(0.0, ge=0)
    num_replicas: int = Field(1, ge=1)
    timeout_s: float = Field(60.0, gt=0)
    """For the masks of one source; no request waits for them."""


class DiffSection(Section):
    """What compares the prompts of source and target."""

    engine: DiffEngineName = DiffEngineName.ALIGNER
    base_url: str = ""
    """Of the `llm` engine: an OpenAI-compatible endpoint such as vLLM's, up to `/v1`."""
    model: str = ""
    """Of the `llm` engine: the name under which the endpoint serves it."""
    deadline_s: float = Field(1.0, gt=0)
    """After it the aligner answers."""

    @model_validator(mode="after")
    def _check_endpoint(self) -> Self:
        self.extractor_config()
        return self

    def extractor_config(self) -> DiffExtractorConfig:
        """Give the extractor's settings."""
        return DiffExtractorConfig(
            engine=self.engine, base_url=self.base_url, model=self.model, deadline_s=self.deadline_s
        )


class RouterSection(Section):
    """Deadlines of everything reuse depends on; a miss of one is a miss of reuse, never of the job."""

    embed_timeout_s: float = Field(2.0, gt=0)
    lookup_timeout_s: float = Field(0.5, gt=0)
    fetch_timeout_s: float = Field(2.0, gt=0)
    max_attempts: int = Field(2, ge=1)
    """Runs of a job whose worker died, the first included."""
    lease_timeout_s: float = Field(30.0, gt=0)
    """A run whose router has not been heard of for so long is taken over by another run."""


class ApiSection(Section):
    """The HTTP edge."""

    num_replicas: int = Field(1, ge=1)
    result_ttl_s: int = Field(24 * 3600, gt=0)
    """Seconds a finished job and its files are kept."""
    poll_after_ms: int = Field(500, ge=10, le=60_000)
    """How long a client is told to wait before it asks again for an unfinished job."""


class LogSection(Section):
    """What is told of each job that ended."""

    jobs_file: str | None = None
    """Where lines are appended; by default they go to the router's standard output."""
    prompts: bool = False
    """True writes the text of prompts, which otherwise appear as a hash."""
    otlp_endpoint: str | None = None
    """An OpenTelemetry collector, such as http://localhost:4318, that gets a trace of each job; needs extra `trace`."""


class AuthSection(Section):
    """API keys; without them everybody is the one tenant `default`."""

    enabled: bool = False
    admin_key_sha256: str = Field("", pattern="^([0-9a-f]{64})?$")
    """SHA-256, in hexadecimal, of the key with which the operator makes the tenants' keys."""

    @model_validator(mode="after")
    def _check_admin_key(self) -> Self:
        if self.enabled != bool(self.admin_key_sha256):
            raise ValueError("auth.enabled needs auth.admin_key_sha256, and only then it is taken")
        return self


class AdmissionSection(Section):
    """Whom the queue refuses at once."""

    max_unfinished_jobs: int = Field(1000, ge=1)
    """Jobs of all tenants that may wait or run, in each lane."""
    max_unfinished_jobs_per_tenant: int | None = Field(None, ge=1)
    """And of one tenant without a limit of its own; by default as many as there may be in all."""
    max_wait_s: float = Field(600.0, ge=0)
    """A job that would wait longer for its turn is refused; 0 refuses none for that."""
