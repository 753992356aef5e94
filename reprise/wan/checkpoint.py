"""Read a Wan checkpoint in diffusers' folder layout, from a folder or from the hub, part by part.

The classes that `model_index.json` may name are a closed list, and weights are read from safetensors only, so a
folder can neither choose code to run nor unpickle any. Knows nothing about requests or sampling.
"""

import hashlib
import json
import pathlib
from typing import Any, Final

import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanTransformer3DModel,
)
from huggingface_hub import snapshot_download
from transformers import AutoTokenizer, UMT5EncoderModel

from reprise.errors import CheckpointError
from reprise.wan.tiny_vae import AutoencoderKLTiny

PARTS: Final = ("tokenizer", "text_encoder", "transformer", "vae", "scheduler")

_CLASSES: Final[dict[str, dict[str, Any]]] = {
    "text_encoder": {"UMT5EncoderModel": UMT5EncoderModel},
    "transformer": {"WanTransformer3DModel": WanTransformer3DModel},
    "vae": {"AutoencoderKLWan": AutoencoderKLWan, "AutoencoderKLTiny": AutoencoderKLTiny},
    "scheduler": {
        "FlowMatchEulerDiscreteScheduler": FlowMatchEulerDiscreteScheduler,
        "UniPCMultistepScheduler": UniPCMultistepScheduler,
    },
}
_SAMPLE_BYTES: Final = 1 << 20


def locate(path: str, revision: str) -> pathlib.Path:
    """Give the checkpoint's folder; an id that is no folder is fetched from the hub."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        wanted = ["model_index.json", *(f"{part}/*" for part in PARTS)]
        folder = pathlib.Path(snapshot_download(path, revision=revision, allow_patterns=wanted))
    if not (folder / "model_index.json").is_file():
        raise CheckpointError(f"expected model_index.json in {folder}: give a folder in diffusers' layout or a hub id")
    return folder


def locate_transformer(path: str, revision: str) -> pathlib.Path:
    """Give the folder of a transformer that is kept apart from the rest of its checkpoint."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        folder = pathlib.Path(snapshot_download(path, revision=revision, allow_patterns=["transformer/*"]))
    if not (folder / "transformer" / "config.json").is_file():
        raise CheckpointError(f"expected transformer/config.json in {folder}: give a folder or hub id that has it")
    return folder


def read_index(folder: pathlib.Path) -> dict[str, Any]:
    """Read which class each part is of; refuse a model with a second transformer, which is not supported."""
    index: dict[str, Any] = json.loads((folder / "model_index.json").read_text())
    missing = [part for part in PARTS if not index.get(part)]
    if missing:
        raise CheckpointError(f"{folder}/model_index.json names no {', '.join(missing)}; expected {', '.join(PARTS)}")
    if any(index.get("transformer_2") or ()):
        raise CheckpointError(f"{folder} has a second transformer (Wan2.2 A14B); use a model with one")
    return index


def part_class(index: dict[str, Any], part: str) -> Any:
    """Give the class of a part, out of the ones that this code was tested with."""
    name = index[part][1]
    if name not in _CLASSES[part]:
        raise CheckpointError(f"{part} is a {name}; expected one of {', '.join(sorted(_CLASSES[part]))}")
    return _CLASSES[part][name]


def load_tokenizer(folder: pathlib.Path) -> Any:
    """Load the tokenizer; its own folder says of which class it is."""
    return AutoTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True, trust_remote_code=False)


def load_text_encoder(folder: pathlib.Path, index: dict[str, Any], dtype: torch.dtype) -> Any:
    """Load the text encoder."""
    encoder_class = part_class(index, "text_encoder")
    encoder = encoder_class.from_pretrained(
        folder / "text_encoder", dtype=dtype, local_files_only=True, use_safetensors=True
    )
    return encoder.eval().requires_grad_(False)


def load_module(folder: pathlib.Path, index: dict[str, Any], part: str, dtype: torch.dtype) -> Any:
    """Load the transformer or the VAE; what the class keeps in float32 stays so whatever `dtype` says."""
    module = part_class(index, part).from_pretrained(
        folder / part, dtype=dtype, local_files_only=True, use_safetensors=True
    )
    return module.eval().requires_grad_(False)


def load_scheduler(folder: pathlib.Path, index: dict[str, Any], *, flow_shift: float) -> Any:
    """Load the scheduler with another shift; the two classes call it by different names."""
    scheduler_class = part_class(index, "scheduler")
    config = scheduler_class.load_config(folder / "scheduler", local_files_only=True)
    shift_name = "shift" if scheduler_class is FlowMatchEulerDiscreteScheduler else "flow_shift"
    return scheduler_class.from_config(config, **{shift_name: flow_shift})


def fingerprint(folder: pathlib.Path, transformer_folder: pathlib.Path) -> str:
    """Tell checkpoints apart by content, so that latents of replaced weights are not reused.

    Hashes names, sizes and both ends of every file: the whole of small ones, seconds instead of minutes for 14B.
    """
    digest = hashlib.sha256()
    for part in PARTS:
        for path in sorted(((transformer_folder if part == "transformer" else folder) / part).glob("*")):
            if path.suffix not in (".json", ".safetensors", ".model"):
                continue
            size = path.stat().st_size
            digest.update(f"{part}/{path.name} {size}\n".encode())
            with path.open("rb") as file:
                digest.update(file.read(_SAMPLE_BYTES))
                file.seek(max(size - _SAMPLE_BYTES, 0))
                digest.update(file.read())
    return digest.hexdigest()[:16]
