"""WanModel against diffusers' WanPipeline, and against itself when requests meet."""

import concurrent.futures
import dataclasses
import json
import pathlib
import shutil
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import WanPipeline, WanTransformer3DModel
from torch import Tensor

from reprise.errors import Cancelled, CheckpointError, NumericalError
from reprise.sampling import SolverState
from reprise.wan import checkpoint
from reprise.wan.model import (
    PromptEmbedding,
    WanModel,
    count_dtypes,
    decode_video,
    denoise,
    draw_noise,
    encode_prompt,
    load,
    predict_velocity,
    solver_for,
)
from reprise.wan.presets import ModelPreset, tiny

SIZE, FRAMES, STEPS, LENGTH = 32, 9, 5, 24
PROMPT = "a red ball moves left &amp;  over \n sand ."
NEGATIVE = "a blue cube"


def small_preset(folder: pathlib.Path) -> ModelPreset:
    return dataclasses.replace(
        tiny(),
        path=str(folder),
        sizes={"32x32": (SIZE, SIZE)},
        default_size="32x32",
        num_inference_steps=STEPS,
        max_sequence_length=LENGTH,
    )


@pytest.fixture(scope="module")
def models(wan_folders: dict[str, pathlib.Path]) -> dict[str, WanModel]:
    return {name: load(small_preset(folder)) for name, folder in wan_folders.items()}


@pytest.fixture(params=["euler", "unipc"])
def model(request: pytest.FixtureRequest, models: dict[str, WanModel]) -> WanModel:
    return models[request.param]


def noise(model: WanModel, seed: int) -> Tensor:
    return draw_noise(model, seed=seed, width=SIZE, height=SIZE, num_frames=FRAMES)


def run(model: WanModel, prompt: str, seed: int, guidance_scale: float = 5.0) -> list[SolverState]:
    """Run a request from its noise and return the states entering steps 0 to N."""
    start = SolverState(latent_BCTHW=noise(model, seed))
    embedding, negative = encode_prompt(model, prompt), encode_prompt(model, NEGATIVE)
    solver = solver_for(model, num_steps=STEPS)
    return [start, *denoise(model, solver, start, embedding, negative, guidance_scale)]


@pytest.mark.parametrize("guidance_scale", [1.0, 5.0])
def test_agrees_with_wan_pipeline_bit_for_bit(model: WanModel, guidance_scale: float) -> None:
    # Same operations in the same order in float32, so no tolerance is needed.
    pipeline = WanPipeline.from_pretrained(model.preset.path)
    pipeline.set_progress_bar_config(disable=True)
    settings: dict[str, Any] = {
        "prompt": PROMPT,
        "negative_prompt": NEGATIVE,
        "height": SIZE,
        "width": SIZE,
        "num_frames": FRAMES,
        "num_inference_steps": STEPS,
        "guidance_scale": guidance_scale,
        "max_sequence_length": LENGTH,
    }
    expected = pipeline(**settings, output_type="latent", generator=torch.Generator().manual_seed(7)).frames
    latent = run(model, PROMPT, 7, guidance_scale)[-1].latent_BCTHW
    assert torch.equal(latent, expected)
    video = pipeline(**settings, output_type="np", generator=torch.Generator().manual_seed(7)).frames[0]
    frames = decode_video(model, latent)
    assert frames.shape == (FRAMES, SIZE, SIZE, 3)
    assert frames.dtype == np.uint8
    assert np.array_equal(frames, np.round(video * 255).astype(np.uint8))


def test_embedding_is_the_pipelines(model: WanModel) -> None:
    pipeline = WanPipeline.from_pretrained(model.preset.path)
    with torch.no_grad():  # gradients choose other kernels, which round otherwise
        expected, _ = pipeline.encode_prompt(PROMPT, do_classifier_free_guidance=False, max_sequence_length=LENGTH)
    embedding = encode_prompt(model, PROMPT)
    assert torch.equal(embedding.states_BLD, expected)
    assert not embedding.states_BLD[:, embedding.num_tokens :].any()
    assert (embedding.num_tokens, embedding.num_dropped) == (10, 0)


@pytest.mark.parametrize(("num_words", "num_dropped"), [(LENGTH - 1, 0), (LENGTH, 1), (100, 77)])
def test_truncation_is_reported(model: WanModel, num_words: int, num_dropped: int) -> None:
    embedding = encode_prompt(model, "red " * num_words)
    assert (embedding.num_tokens, embedding.num_dropped) == (LENGTH, num_dropped)


def test_interleaved_requests_equal_sequential_ones(model: WanModel) -> None:
    first, second = run(model, PROMPT, 1), run(model, "the green cube moves up", 2)
    starts = [SolverState(latent_BCTHW=noise(model, seed)) for seed in (1, 2)]
    prompts = [encode_prompt(model, text) for text in (PROMPT, "the green cube moves up")]
    negative = encode_prompt(model, NEGATIVE)
    runs = [
        denoise(model, solver_for(model, num_steps=STEPS), start, prompt, negative, 5.0)
        for start, prompt in zip(starts, prompts, strict=True)
    ]
    for states in zip(first[1:], second[1:], *runs, strict=True):
        assert torch.equal(states[0].latent_BCTHW, states[2].latent_BCTHW)
        assert torch.equal(states[1].latent_BCTHW, states[3].latent_BCTHW)


def test_requests_on_threads_equal_sequential_ones(model: WanModel) -> None:
    def request(seed: int) -> tuple[Tensor, Any]:
        # Prompts of different lengths, so that every tokenizer call truncates and pads anew.
        latent = run(model, "red ball " * (4 * seed + 1), seed)[-1].latent_BCTHW
        return latent, decode_video(model, latent)

    alone = [request(seed) for seed in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(request, range(4)))
    for (latent, frames), (other_latent, other_frames) in zip(alone, together, strict=True):
        assert torch.equal(latent, other_latent)
        assert np.array_equal(frames, other_frames)


def test_tokenizer_never_runs_twice_at_once(model: WanModel) -> None:
    # Two calls that set its truncation at the same time fail with "Already borrowed", but seldom: so watch the calls.
    inside, overlaps = threading.Semaphore(1), list[bool]()

    def watched(*args: Any, **kwargs: Any) -> Any:
        is_alone = inside.acquire(blocking=False)
        overlaps.append(not is_alone)
        time.sleep(0.002)
        tokens = model.tokenizer(*args, **kwargs)
        if is_alone:
            inside.release()
        return tokens

    guarded = dataclasses.replace(model, tokenizer=watched)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: encode_prompt(guarded, PROMPT), range(8)))
    assert len(overlaps) == 16
    assert not any(overlaps)


def test_resuming_at_every_step_gives_the_uninterrupted_result(model: WanModel) -> None:
    states = run(model, PROMPT, 3)
    embedding, negative = encode_prompt(model, PROMPT), encode_prompt(model, NEGATIVE)
    for state in states:
        again = [state, *denoise(model, solver_for(model, num_steps=STEPS), state, embedding, negative, 5.0)]
        assert len(again) == STEPS + 1 - state.step
        assert torch.equal(again[-1].latent_BCTHW, states[-1].latent_BCTHW)


def test_multistep_history_is_what_makes_resuming_exact(models: dict[str, WanModel]) -> None:
    model = models["unipc"]
    states = run(model, PROMPT, 3)
    embedding, negative = encode_prompt(model, PROMPT), encode_prompt(model, NEGATIVE)
    fresh = states[2].without_history()
    last = list(denoise(model, solver_for(model, num_steps=STEPS), fresh, embedding, negative, 5.0))[-1]
    assert not torch.equal(last.latent_BCTHW, states[-1].latent_BCTHW)
    assert torch.isfinite(last.latent_BCTHW).all()


def test_first_frame_is_never_touched(model: WanModel) -> None:
    first = torch.randn(1, 16, 1, SIZE // 8, SIZE // 8, generator=torch.Generator().manual_seed(5))
    embedding, negative = encode_prompt(model, PROMPT), encode_prompt(model, NEGATIVE)
    start = SolverState(latent_BCTHW=noise(model, 1))
    solver = solver_for(model, num_steps=STEPS)
    states = list(denoise(model, solver, start, embedding, negative, 5.0, first_frame_latent_BC1HW=first))
    for state in states:
        assert torch.equal(state.latent_BCTHW[:, :, :1], first)
    unconditioned = run(model, PROMPT, 1)[-1].latent_BCTHW
    assert not torch.allclose(states[-1].latent_BCTHW[:, :, 1:], unconditioned[:, :, 1:], atol=1e-3)


def test_first_frame_tokens_are_told_timestep_zero(model: WanModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    forward = model.transformer.forward

    def spy(latent: Tensor, timestep: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(timestep)
        return forward(latent, timestep, *args, **kwargs)

    monkeypatch.setattr(model.transformer, "forward", spy)
    embedding, timestep = encode_prompt(model, PROMPT), torch.tensor(988.49)
    first = torch.zeros(1, 16, 1, SIZE // 8, SIZE // 8)
    velocity = predict_velocity(model, noise(model, 1), timestep, embedding, None, 1.0, first_frame_latent_BC1HW=first)
    cells = (SIZE // 16) ** 2
    assert torch.equal(seen[0], torch.tensor([[0.0] * cells + [988.49] * 2 * cells]))
    assert not velocity[:, :, :1].any()


def test_model_is_shown_the_clean_first_frame_only(model: WanModel) -> None:
    embedding = encode_prompt(model, PROMPT)
    latent = noise(model, 1)
    first = torch.ones(1, 16, 1, SIZE // 8, SIZE // 8)
    other = torch.cat([torch.full_like(first, 9.0), latent[:, :, 1:]], 2)
    # What lies in the latent's own first frame makes no difference: the model is shown the clean one.
    velocities = [
        predict_velocity(model, x, torch.tensor(500.0), embedding, None, 1.0, first_frame_latent_BC1HW=first)
        for x in (latent, other)
    ]
    assert torch.equal(*velocities)


def test_guidance_without_negative_prompt_is_refused(model: WanModel) -> None:
    with pytest.raises(ValueError, match=r"guidance_scale=5\.0 needs an embedding of the negative prompt"):
        predict_velocity(model, noise(model, 1), torch.tensor(500.0), encode_prompt(model, PROMPT), None, 5.0)


def test_cancel_between_steps(model: WanModel) -> None:
    start = SolverState(latent_BCTHW=noise(model, 1))
    embedding, reached = encode_prompt(model, PROMPT), list[int]()
    solver = solver_for(model, num_steps=STEPS)
    states = denoise(model, solver, start, embedding, None, 1.0, should_stop=lambda: len(reached) == 2)
    with pytest.raises(Cancelled, match=f"before step 2 of {STEPS}"):
        reached.extend(state.step for state in states)
    assert reached == [1, 2]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_latent_is_an_error_not_a_black_video(model: WanModel, value: float) -> None:
    latent = noise(model, 1)
    latent[0, 3, 1, 0, 0] = value
    with pytest.raises(NumericalError) as raised:
        decode_video(model, latent)
    assert raised.value.code == "numerical_error"


def test_noise_does_not_depend_on_what_was_drawn_before(model: WanModel) -> None:
    expected = torch.randn(1, 16, 3, 4, 4, generator=torch.Generator().manual_seed(-(2**63)))
    torch.randn(3)
    assert torch.equal(noise(model, -(2**63)), expected)
    assert not torch.equal(noise(model, 2**63 - 1), expected)


@pytest.mark.parametrize(("width", "num_frames"), [(40, 9), (32, 8)])
def test_clip_off_the_models_grid_is_refused(model: WanModel, width: int, num_frames: int) -> None:
    with pytest.raises(ValueError, match=f"got {num_frames} frames of {width}x32"):
        draw_noise(model, seed=0, width=width, height=32, num_frames=num_frames)


def test_bundled_layout_loads_half_files_as_float32(half_folder: pathlib.Path) -> None:
    model = load(small_preset(half_folder))
    assert set(count_dtypes(model.vae)) == set(count_dtypes(model.transformer)) == {"float32"}
    assert torch.is_nonzero(model.transformer.blocks[0].attn1.to_q.weight.abs().sum())
    latent = run(model, PROMPT, 1)[-1].latent_BCTHW
    frames = decode_video(model, latent)
    video = model.vae.decode(latent * 1.5 + 0.1).sample
    expected = (video[0] * 0.5 + 0.5).clamp(0, 1).mul(255).round().byte().permute(1, 2, 3, 0)
    assert frames.shape == (FRAMES, SIZE, SIZE, 3)
    assert np.abs(frames.astype(int) - expected.numpy().astype(int)).max() <= 1  # another order of rounding


def test_half_precision_keeps_sensitive_parts_and_the_latent_in_float32(wan_folders: dict[str, pathlib.Path]) -> None:
    preset = dataclasses.replace(small_preset(wan_folders["unipc"]), transformer_dtype="bfloat16")
    model = load(preset)
    assert set(count_dtypes(model.transformer)) == {"bfloat16", "float32"}
    assert model.transformer.condition_embedder.time_embedder.linear_1.weight.dtype == torch.float32
    assert model.transformer.blocks[0].scale_shift_table.dtype == torch.float32
    last = run(model, PROMPT, 1)[-1].latent_BCTHW
    exact = run(load(small_preset(wan_folders["unipc"])), PROMPT, 1)[-1].latent_BCTHW
    assert last.dtype == torch.float32
    assert (last - exact).abs().mean() < 0.05 * exact.abs().mean()  # bfloat16 has 3 significant digits


def test_fingerprint_follows_the_weights(wan_folders: dict[str, pathlib.Path], half_folder: pathlib.Path) -> None:
    prints = {name: load(small_preset(folder)).fingerprint for name, folder in wan_folders.items()}
    assert prints["euler"] == load(small_preset(wan_folders["euler"])).fingerprint
    assert len({*prints.values(), load(small_preset(half_folder)).fingerprint}) == 3


def test_transformer_of_another_folder_replaces_the_checkpoints_own(
    wan_folders: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    own = load(small_preset(wan_folders["euler"]))
    other = WanTransformer3DModel.from_pretrained(wan_folders["euler"] / "transformer")
    torch.nn.init.ones_(other.proj_out.bias)
    other.save_pretrained(tmp_path / "transformer")
    preset = dataclasses.replace(small_preset(wan_folders["euler"]), transformer_path=str(tmp_path))
    model = load(preset)
    assert torch.equal(model.transformer.proj_out.bias, other.proj_out.bias)
    assert torch.equal(model.vae.decoder.conv_out.weight, own.vae.decoder.conv_out.weight)
    assert model.fingerprint != own.fingerprint  # latents of one are nothing to the other
    with pytest.raises(CheckpointError, match=r"transformer/config\.json"):
        load(dataclasses.replace(preset, transformer_path=str(tmp_path / "transformer")))


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("vae", ["os", "system"], "vae is a system; expected one of AutoencoderKLTiny, AutoencoderKLWan"),
        ("scheduler", ["diffusers", "DDIMScheduler"], "scheduler is a DDIMScheduler"),
        ("transformer", None, "names no transformer"),
        ("transformer_2", ["diffusers", "WanTransformer3DModel"], "second transformer"),
    ],
)
def test_checkpoint_that_cannot_be_run_is_refused(
    part: str, value: Any, message: str, wan_folders: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(wan_folders["euler"], folder)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, part: value}))
    with pytest.raises(CheckpointError, match=message):
        load(small_preset(folder))


def test_id_that_is_no_folder_is_fetched_from_the_hub(
    wan_folders: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def fetch(repository: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.append((repository, revision, "vae/*" in allow_patterns))
        return str(wan_folders["unipc"])

    monkeypatch.setattr(checkpoint, "snapshot_download", fetch)
    preset = dataclasses.replace(small_preset(wan_folders["unipc"]), path="someone/wan", revision="abc")
    assert load(preset).fingerprint == load(small_preset(wan_folders["unipc"])).fingerprint
    assert asked == [("someone/wan", "abc", True)]


def test_folder_that_is_no_checkpoint_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected model_index\.json"):
        load(small_preset(tmp_path))


def test_embedding_is_a_value(model: WanModel) -> None:
    embedding: PromptEmbedding = encode_prompt(model, PROMPT)
    with pytest.raises(dataclasses.FrozenInstanceError):
        embedding.num_tokens = 3  # type: ignore[misc]
