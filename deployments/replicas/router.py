"""The router's deployment: waits for every part, then runs jobs until it is told to drain."""

import asyncio
import pathlib
import secrets

from ray.serve.handle import DeploymentHandle

from actors.messages import ClipRequest
from cache_store.contracts import EncoderTag
from cache_store.partition import PartitionKey
from deployments.api.artifacts import ArtifactStore
from deployments.api.ended_jobs import EndedJobs
from deployments.api.jobs import JobStore
from deployments.api.queue_load import QueueReader
from deployments.api.video_job import Lane
from deployments.api.webhook_store import WebhookStore
from deployments.clip_job import ClipJobRunner
from deployments.config import AppConfig
from deployments.costs import CostLearner, CostModel
from deployments.handles import (
    DenoiserHandle,
    DiffExtractorHandle,
    EmbedderHandle,
    LongRendererHandle,
    MaskGeneratorHandle,
    RetrievalHandle,
)
from deployments.herald import Herald, Reporter
from deployments.job_log import JobLog
from deployments.job_metrics import JobMetrics
from deployments.long_job import LongJobRunner
from deployments.metrics import RayMetrics, Sample, lane_samples, record_regularly
from deployments.planning import PlanningConfig
from deployments.replicas.store import Store, store_url
from deployments.router import Router, RouterConfig
from deployments.traces import TraceReporter
from deployments.webhooks import WebhookReporter, WebhookSender


def router_config(config: AppConfig, lane: Lane) -> RouterConfig:
    """Give the settings of the router of a lane."""
    num_slots = config.denoiser.num_replicas if lane is Lane.CLIPS else config.long.num_replicas
    return RouterConfig(num_slots=num_slots, lane=lane, renew_period_s=config.router.lease_timeout_s / 6)


class RouterDeployment:
    """Runs queued jobs."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self,
        config: AppConfig,
        store: Store,
        embedder: DeploymentHandle,
        retrieval: DeploymentHandle,
        denoiser: DeploymentHandle,
        masks: DeploymentHandle | None,
        diff: DeploymentHandle | None,
        long_renderer: DeploymentHandle | None,
    ) -> None:
        self._metrics, self._costs = RayMetrics(), CostModel()
        encoder: EncoderTag = await embedder.tag.remote()
        partition: PartitionKey = await denoiser.partition.remote()
        url = await store_url(store)
        jobs = JobStore.connect(url, config.job_store_config())
        artifacts = ArtifactStore(config.artifacts())
        runner = ClipJobRunner(
            PlanningConfig(
                partition=config.complete_partition(partition, encoder),
                stage_map=config.model_preset().stage_map,
                embed_timeout_s=config.router.embed_timeout_s,
                lookup_timeout_s=config.router.lookup_timeout_s,
                is_reuse_on=config.reuse,
            ),
            jobs=jobs,
            artifacts=artifacts,
            embedder=EmbedderHandle(embedder),
            retrieval=RetrievalHandle(retrieval),
            denoiser=DenoiserHandle(denoiser),
            masks=None if masks is None else MaskGeneratorHandle(masks, timeout_s=config.masks.timeout_s),
            diff=None if diff is None else DiffExtractorHandle(diff, deadline_s=config.diff.deadline_s),
            metrics=self._metrics,
        )
        self._runner, self._queues = runner, QueueReader.connect(url)
        self._routers = [Router(router_config(config, Lane.CLIPS), jobs=jobs, runner=runner)]
        if long_renderer is not None:
            long_runner = LongJobRunner(jobs=jobs, artifacts=artifacts, renderer=LongRendererHandle(long_renderer))
            self._routers.append(Router(router_config(config, Lane.LONG), jobs=jobs, runner=long_runner))
        for router in self._routers:
            await router.start()
        log = JobLog(
            None if config.log.jobs_file is None else pathlib.Path(config.log.jobs_file),
            with_prompts=config.log.prompts,
        )
        ended = EndedJobs.connect(url, name=f"herald-{secrets.token_hex(6)}")
        hooks = WebhookStore.connect(url)
        reporters: list[Reporter] = [log, JobMetrics(self._metrics), CostLearner(self._costs), WebhookReporter(hooks)]
        if config.log.otlp_endpoint is not None:
            reporters.append(TraceReporter(config.log.otlp_endpoint))
        watching = record_regularly(self._metrics, self._read_queues)
        herald, sender = Herald(ended, jobs, reporters), WebhookSender(hooks, jobs, self._metrics)
        self._telling = [asyncio.create_task(work) for work in (herald.run(), sender.run(), watching)]

    async def estimate(self, tenant: str, clip: ClipRequest) -> float:
        """Predict the seconds that a worker will spend on a request after its look-up; 0 while nothing is known."""
        if self._costs.predict(clip) is None:
            return 0.0
        plan = None if clip.is_long else await self._runner.estimate(tenant, clip)
        return self._costs.predict(clip, None if plan is None else plan.boundaries) or 0.0

    async def _read_queues(self) -> list[Sample]:
        return [sample for lane in Lane for sample in lane_samples(lane, await self._queues.load(lane))]

    def is_ready(self) -> bool:
        """Answer once every part the router depends on has started and its loops run."""
        self.check_health()
        return True

    def check_health(self) -> None:
        """Fail when a router's loops have ended."""
        for router in self._routers:
            router.check()

    async def drain(self) -> None:
        """Take no more jobs and wait for the running ones; nothing takes it up again."""
        await asyncio.gather(*(router.stop() for router in self._routers))

    async def __del__(self) -> None:
        await self.drain()
