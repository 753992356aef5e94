"""The whole application on one screen: which deployments there are and who holds a handle to whom.

    caller -> Api -> (Redis: jobs) -> Router -> Embedder
                                             -> Retrieval -> (Redis: entries)
                                             -> Denoiser  -> (Redis: latents)
                                             -> MaskGenerator -> (Redis: masks, beside the latents)
                                             -> DiffExtractor -> a language model's endpoint
                                             -> LongRenderer  (videos longer than a clip)
           -> Live -> a group of workers, which viewers then talk to itself (streams)

MaskGenerator is there unless masks or reuse are off, DiffExtractor only where a language model compares prompts.
`serve run deployments.app:build_app` starts it with defaults; a Serve config file gives `args`.
"""

from ray import serve
from ray.serve import Application

from actors.denoiser import DenoiserConfig
from actors.diff_extractor import DiffEngineName
from cache_store.embedded import EmbeddedConfig
from deployments.config import AppConfig
from deployments.replicas.api import ApiDeployment
from deployments.replicas.denoiser import DenoiserDeployment
from deployments.replicas.diff_extractor import DiffExtractorDeployment
from deployments.replicas.embedder import EmbedderDeployment
from deployments.replicas.live import LiveDeployment
from deployments.replicas.long_renderer import LongRendererDeployment
from deployments.replicas.mask_generator import MaskGeneratorDeployment
from deployments.replicas.retrieval import RetrievalDeployment
from deployments.replicas.router import RouterDeployment
from deployments.replicas.store import Store as StoreOrUrl
from deployments.replicas.store import StoreDeployment

DRAIN_S = 600
"""Longest run of one video that a shutdown or a scale-down waits for."""

Store = serve.deployment(StoreDeployment, name="Store", ray_actor_options={"num_cpus": 0.1})
Embedder = serve.deployment(
    EmbedderDeployment, name="Embedder", ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=64
)
Retrieval = serve.deployment(
    RetrievalDeployment, name="Retrieval", ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=64
)
MaskGenerator = serve.deployment(MaskGeneratorDeployment, name="MaskGenerator", max_ongoing_requests=1)
DiffExtractor = serve.deployment(
    DiffExtractorDeployment, name="DiffExtractor", ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=64
)
Denoiser = serve.deployment(
    DenoiserDeployment, name="Denoiser", max_ongoing_requests=1, graceful_shutdown_timeout_s=DRAIN_S
)
LongRenderer = serve.deployment(
    LongRendererDeployment, name="LongRenderer", max_ongoing_requests=1, graceful_shutdown_timeout_s=DRAIN_S
)
Live = serve.deployment(LiveDeployment, name="Live", ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=64)
Router = serve.deployment(
    RouterDeployment,
    name="Router",
    ray_actor_options={"num_cpus": 0.1},
    max_ongoing_requests=256,
    graceful_shutdown_timeout_s=DRAIN_S,
)
Api = serve.deployment(
    serve.ingress()(ApiDeployment),
    name="Api",
    ray_actor_options={"num_cpus": 0.1},
    max_ongoing_requests=256,
)


def build_app(config: AppConfig) -> Application:
    """Wire the deployments of one served model."""
    store: StoreOrUrl = config.store.url
    if config.store.url == "embedded":
        store = Store.bind(
            EmbeddedConfig(data_dir=config.data_path() / "store", max_memory_bytes=2 * config.store.capacity_bytes)
        )
    worker = config.denoiser
    embedder = Embedder.options(num_replicas=config.embedder.num_replicas).bind(config)
    retrieval = Retrieval.bind(config, store, embedder)
    denoiser = Denoiser.options(
        num_replicas=worker.num_replicas,
        ray_actor_options={"num_cpus": worker.num_cpus, "num_gpus": worker.num_gpus},
    ).bind(
        DenoiserConfig(
            preset=config.model_preset(),
            device=worker.device,
            memory_gib=worker.memory_gib,
            num_threads=worker.num_threads,
            teacache=config.teacache(),
        ),
        config,
        store,
    )
    generator, extractor = config.mask_generator_config(), config.diff.extractor_config()
    masks = diff = None
    if config.reuse and generator is not None:
        masks = MaskGenerator.options(
            num_replicas=config.masks.num_replicas,
            ray_actor_options={"num_cpus": config.masks.num_cpus, "num_gpus": config.masks.num_gpus},
        ).bind(generator, config, store)
    if config.reuse and extractor.engine is not DiffEngineName.ALIGNER:
        diff = DiffExtractor.bind(extractor)
    renderer, long_renderer = config.long_renderer_config(), None
    if renderer is not None:
        long_renderer = LongRenderer.options(
            num_replicas=config.long.num_replicas,
            ray_actor_options={"num_cpus": renderer.num_cpus, "num_gpus": renderer.num_gpus},
        ).bind(renderer, stall_timeout_s=config.long.stall_timeout_s)
    router = Router.bind(config, store, embedder, retrieval, denoiser, masks, diff, long_renderer)
    streams, live = config.live_config(), None
    if streams is not None:
        live = Live.options(num_replicas=config.live.num_groups).bind(streams, config, store)
    api = Api.options(num_replicas=config.api.num_replicas)
    return api.bind(config.api_settings(), config, store, router, retrieval, live)
