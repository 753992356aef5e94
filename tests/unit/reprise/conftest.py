"""A Wan checkpoint of the real classes and folder layout, at tiny size with random weights."""

import json
import pathlib
import shutil
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from reprise.wan.tiny_vae import AutoencoderKLTiny

WORDS = ("a", "the", "red", "blue", "green", "ball", "cube", "moves", "left", "up", "over", "sand", "&", ".")
SHIFT = 3.0
SCHEDULERS: dict[str, Any] = {
    "euler": FlowMatchEulerDiscreteScheduler(shift=SHIFT),
    "unipc": UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT),
}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Models this small gain nothing from more threads, and lose much beside another busy process."""
    torch.set_num_threads(1)


def _tokenizer() -> PreTrainedTokenizerFast:
    special = {"<pad>": 0, "</s>": 1, "<unk>": 2}
    vocabulary = {**special, **{word: index + 3 for index, word in enumerate(WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    )


def _pipeline() -> WanPipeline:
    torch.manual_seed(0)
    text = UMT5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, pad_token_id=0)
    return WanPipeline(
        tokenizer=_tokenizer(),
        text_encoder=UMT5EncoderModel(text).eval(),
        transformer=WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=16,
            out_channels=16,
            text_dim=32,
            freq_dim=32,
            ffn_dim=32,
            num_layers=2,
            rope_max_seq_len=32,
        ).eval(),
        vae=AutoencoderKLWan(
            base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
        ).eval(),
        scheduler=SCHEDULERS["euler"],
    )


@pytest.fixture(scope="session")
def wan_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Folders by scheduler, saved by WanPipeline itself; one set of weights."""
    pipeline = _pipeline()
    folders = {}
    for name, scheduler in SCHEDULERS.items():
        folders[name] = tmp_path_factory.mktemp("wan") / name
        pipeline.scheduler = scheduler
        pipeline.register_modules(scheduler=scheduler)
        pipeline.save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="session")
def half_folder(wan_folders: dict[str, pathlib.Path], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The layout of the bundled family: its own VAE class, and fp16 files that are loaded as float32."""
    folder = tmp_path_factory.mktemp("half") / "model"
    shutil.copytree(wan_folders["euler"], folder)
    torch.manual_seed(1)
    vae = AutoencoderKLTiny(channels=16, detail_channels=8, latents_mean=[0.1] * 16, latents_std=[1.5] * 16)
    shutil.rmtree(folder / "vae")
    vae.half().save_pretrained(folder / "vae")
    WanTransformer3DModel.from_pretrained(folder / "transformer").half().save_pretrained(folder / "transformer")
    index = json.loads((folder / "model_index.json").read_text())
    index["vae"] = ["reprise.wan.tiny_vae", "AutoencoderKLTiny"]
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder
