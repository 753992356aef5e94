"""A reuse key for tests."""

from typing import Final

from cache_store.partition import PartitionKey

MODEL_PARTITION: Final = PartitionKey(
    tenant="",
    model_id="reprise-tiny",
    model_revision="1",
    dtype="float32",
    quantisation="",
    scheduler="EulerSolver",
    shift=3.0,
    num_steps=4,
    guidance=4.0,
    width=64,
    height=64,
    num_frames=17,
    fps=4,
    negative_prompt="",
    loras=(),
    text_encoder_revision="1",
    embedder_revision="1",
    vae_revision="1",
)
"""The served model's part, with the request's part as the tests' clips have it."""
