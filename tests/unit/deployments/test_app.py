"""The graph: which deployments there are under which configuration. Nothing is started."""

from typing import Any

import pytest
from ray.serve import Application

from deployments.app import build_app
from deployments.config import AppConfig

ALWAYS = {"Store", "Embedder", "Retrieval", "Denoiser", "Router", "Api"}
LLM = {"engine": "llm", "base_url": "http://127.0.0.1:9/v1", "model": "m"}


def deployments_of(app: Application) -> dict[str, Any]:
    """Give every bound deployment by its name."""
    bound = app._bound_deployment
    found = {bound.name: bound}
    for argument in bound.init_args:
        if isinstance(argument, Application):
            found |= deployments_of(argument)
    return found


@pytest.mark.parametrize(
    ("values", "further"),
    [
        ({}, {"MaskGenerator", "LongRenderer", "Live"}),
        ({"masks": {"engine": "off"}}, {"LongRenderer", "Live"}),
        ({"masks": {"engine": "off"}, "long": {"enabled": False}}, {"Live"}),
        ({"live": {"enabled": False}}, {"MaskGenerator", "LongRenderer"}),
        ({"preset": "wan2.1-t2v-1.3b"}, set()),
        ({"diff": LLM}, {"MaskGenerator", "DiffExtractor", "LongRenderer", "Live"}),
        ({"diff": LLM, "masks": {"engine": "off"}}, {"DiffExtractor", "LongRenderer", "Live"}),
        ({"diff": LLM, "reuse": False}, {"LongRenderer", "Live"}),
    ],
)
def test_parts_that_only_some_need_are_there_for_them(values: dict[str, Any], further: set[str]) -> None:
    assert deployments_of(build_app(AppConfig.model_validate(values))).keys() == ALWAYS | further


def test_an_external_store_is_no_deployment() -> None:
    app = build_app(AppConfig.model_validate({"store": {"url": "redis://127.0.0.1:6379"}}))
    assert "Store" not in deployments_of(app)


def test_the_mask_generator_gets_what_its_section_reserves() -> None:
    masks = {"num_replicas": 2, "num_cpus": 1.5, "num_gpus": 0.5, "device": "cuda"}
    bound = deployments_of(build_app(AppConfig.model_validate({"masks": masks})))["MaskGenerator"]
    assert bound.num_replicas == 2
    assert bound.ray_actor_options == {"num_cpus": 1.5, "num_gpus": 0.5}
    assert bound.init_args[0].device == "cuda"


def test_one_replica_of_each_fits_on_two_cpus() -> None:
    bound = deployments_of(build_app(AppConfig.model_validate({"diff": LLM}))).values()
    assert sum(each.ray_actor_options["num_cpus"] for each in bound) <= 2


def test_a_group_of_streams_gets_what_its_section_says() -> None:
    live = {"num_groups": 2, "num_denoisers": 3, "decodes_apart": True, "chunk_latents": 4, "fps": 16, "num_gpus": 1}
    live |= {"group_latents": 2}
    bound = deployments_of(build_app(AppConfig.model_validate({"live": live | {"fallback": "drop"}})))["Live"]
    assert bound.num_replicas == 2
    config = bound.init_args[0]
    assert (config.workers.num_denoisers, config.workers.decodes_apart, config.workers.num_gpus) == (3, True, 1)
    assert (config.workers.worker.preset.chunk_latents, config.workers.worker.preset.group_s) == (4, 0.5)
    assert config.group.session.fallback == "drop"
    with pytest.raises(ValueError, match="chunk_latents=4 must be a multiple of group_latents=3"):
        AppConfig.model_validate({"live": {"chunk_latents": 4, "group_latents": 3}})
