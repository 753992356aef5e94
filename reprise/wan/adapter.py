"""Role adapters: what makes one Wan transformer a planner or a renderer (FlashForward, section 3.2).

A role embedding joins the timestep's embedding, and low-rank updates (LoRA) join the attention projections, both by
hooks for the time of a context; the weights stay as they are. Names in the files are those of diffusers' LoRA
layout, plus `role_embedding`. Knows nothing about what the roles do.

Shape letters: D width, R rank, I and O a projection's inputs and outputs.
"""

import contextlib
import dataclasses
import enum
import json
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from reprise.errors import CheckpointError
from reprise.hooks import Hook, hooked

CONFIG_FILE, WEIGHTS_FILE = "adapter.json", "adapter.safetensors"
ROLE_EMBEDDING = "role_embedding"
ATTENTION_PROJECTIONS = tuple(
    f"{part}.{name}" for part in ("attn1", "attn2") for name in ("to_q", "to_k", "to_v", "to_out.0")
)


class Role(enum.StrEnum):
    """What a forward is for."""

    PLANNER = "planner"
    RENDERER = "renderer"
    SELF_FORCING = "self_forcing"
    """A baseline's one role, as is the next."""
    HIAR = "hiar"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """The settings of an adapter's updates."""

    rank: int
    alpha: float
    """An update counts alpha / rank times."""
    targets: tuple[str, ...] = ATTENTION_PROJECTIONS
    """Linear layers of every block that have an update."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"expected a rank of at least 1, got rank={self.rank}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RoleAdapter:
    """One role's weights; its tensors are what an optimizer gets."""

    role: Role
    config: AdapterConfig
    tensors: Mapping[str, Tensor]
    """`role_embedding` (D,), and for every adapted layer `<layer>.lora_A.weight` (R, I) and `.lora_B.weight` (O, R)."""

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> "RoleAdapter":
        """Give the same weights on a device, in another dtype if one is given."""
        moved = {name: tensor.to(device, dtype) for name, tensor in self.tensors.items()}
        return dataclasses.replace(self, tensors=moved)


def new_adapter(transformer: Any, role: Role, config: AdapterConfig, *, generator: torch.Generator) -> RoleAdapter:
    """Make an adapter, in float32 on the host, that changes nothing until it is trained: embedding and B are zero."""
    tensors = {ROLE_EMBEDDING: torch.zeros(transformer.scale_shift_table.shape[2])}
    for name, layer in _target_layers(transformer, config).items():
        down_RI = torch.randn(config.rank, layer.in_features, generator=generator) / math.sqrt(layer.in_features)
        tensors[f"{name}.lora_A.weight"] = down_RI
        tensors[f"{name}.lora_B.weight"] = torch.zeros(layer.out_features, config.rank)
    return RoleAdapter(role=role, config=config, tensors=tensors)


@contextlib.contextmanager
def adapted(transformer: Any, adapter: RoleAdapter | None) -> Iterator[None]:
    """Give a WanTransformer3DModel a role for the forwards in this context, on this thread alone.

    None installs nothing. Works for the dense, the region's and the causal forward; a backward pass that runs a
    forward again (checkpointing) must do so inside the context too. Raises ValueError for an adapter that was made
    for another model, or blocks compiled by torch.
    """
    with hooked(transformer, [] if adapter is None else _hooks(transformer, adapter)):
        yield


def save_adapter(adapter: RoleAdapter, folder: pathlib.Path) -> None:
    """Write an adapter's weights and settings into a folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"role": adapter.role.value, **dataclasses.asdict(adapter.config)}
    (folder / CONFIG_FILE).write_text(json.dumps(settings, indent=2) + "\n")
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in adapter.tensors.items()}
    save_file(weights, folder / WEIGHTS_FILE)


def load_adapter(folder: pathlib.Path, device: str | torch.device = "cpu") -> RoleAdapter:
    """Read what `save_adapter` wrote, in the dtype it has on disk; raise CheckpointError for anything else."""
    try:
        settings = json.loads((folder / CONFIG_FILE).read_text())
        role = Role(settings.pop("role"))
        config = AdapterConfig(**{**settings, "targets": tuple(settings["targets"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"expected the settings of a role adapter in {folder / CONFIG_FILE}: {error}") from error
    if not (folder / WEIGHTS_FILE).is_file():
        raise CheckpointError(f"expected the weights of a role adapter in {folder / WEIGHTS_FILE}, found none")
    return RoleAdapter(role=role, config=config, tensors=load_file(folder / WEIGHTS_FILE, device=str(device)))


def _target_layers(transformer: Any, config: AdapterConfig) -> dict[str, Any]:
    """Find the layers that have an update, by their names in the transformer."""
    names = [f"blocks.{index}.{target}" for index in range(len(transformer.blocks)) for target in config.targets]
    return {name: transformer.get_submodule(name) for name in names}


def _hooks(transformer: Any, adapter: RoleAdapter) -> list[tuple[Any, Hook]]:
    """Pair every adapted layer with its update, and the timestep's embedder with the role."""
    layers = _target_layers(transformer, adapter.config)
    expected: dict[str, tuple[int, ...]] = {ROLE_EMBEDDING: (transformer.scale_shift_table.shape[2],)}
    for name, layer in layers.items():
        expected[f"{name}.lora_A.weight"] = (adapter.config.rank, layer.in_features)
        expected[f"{name}.lora_B.weight"] = (layer.out_features, adapter.config.rank)
    found = {name: tuple(tensor.shape) for name, tensor in adapter.tensors.items()}
    if found != expected:
        odd = sorted(name for name in expected.keys() | found.keys() if found.get(name) != expected.get(name))
        raise ValueError(f"the {adapter.role} adapter was made for another transformer; first odd tensor: {odd[0]}")
    scale = adapter.config.alpha / adapter.config.rank
    embedding_D = adapter.tensors[ROLE_EMBEDDING]
    pairs: list[tuple[Any, Hook]] = [
        (transformer.condition_embedder.time_embedder, lambda _module, _args, output: output + embedding_D.to(output))
    ]
    for name, layer in layers.items():
        down_RI, up_OR = adapter.tensors[f"{name}.lora_A.weight"], adapter.tensors[f"{name}.lora_B.weight"]
        pairs.append((layer, _low_rank(down_RI, up_OR, scale)))
    return pairs


def _low_rank(down_RI: Tensor, up_OR: Tensor, scale: float) -> Hook:
    def add(_module: Any, args: Any, output: Tensor) -> Tensor:
        inputs = args[0]
        return output + scale * F.linear(F.linear(inputs, down_RI.to(inputs)), up_OR.to(inputs))

    return add
