"""Keys and values of one forward, kept for others to attend to (FlashForward, section 3.1).

Keys are kept after their norm and their rotary turn, so that they stay at the latent frames they were made for
wherever they are read. Knows nothing about stages, windows, who reads what, or how values travel.

Shape letters: B batch, S tokens, N heads, K head width.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LayerKV:
    """One layer's keys and values, both (B, S, N, K) in the transformer's dtype."""

    key_BSNK: Tensor
    value_BSNK: Tensor

    @property
    def num_bytes(self) -> int:
        """Count the bytes of both."""
        return self.key_BSNK.nbytes + self.value_BSNK.nbytes

    def to(self, device: str | torch.device) -> "LayerKV":
        """Give the same values on a device; the very same tensors if they lie there."""
        return LayerKV(self.key_BSNK.to(device), self.value_BSNK.to(device))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ChunkKV:
    """What one forward over T latent frames leaves for others: per layer, S = T times the tokens of one frame."""

    layers: tuple[LayerKV, ...]
    positions: tuple[int, ...]
    """The absolute latent frame of each of the T frames, in the order of the rows."""

    @property
    def num_bytes(self) -> int:
        """Count the bytes of all layers."""
        return sum(layer.num_bytes for layer in self.layers)

    def to(self, device: str | torch.device) -> "ChunkKV":
        """Give the same values on a device; the very same tensors if they lie there."""
        return ChunkKV(tuple(layer.to(device) for layer in self.layers), self.positions)

    def detach(self) -> "ChunkKV":
        """Give the same values to attend to without a gradient."""
        layers = (LayerKV(layer.key_BSNK.detach(), layer.value_BSNK.detach()) for layer in self.layers)
        return ChunkKV(tuple(layers), self.positions)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PromptKV:
    """A prompt as the cross-attentions read it: per layer, one row (S) for each text token.

    Depends on the prompt and, where their adapters reach the cross-attentions, on the role; never on a chunk.
    """

    layers: tuple[LayerKV, ...]

    @property
    def num_bytes(self) -> int:
        """Count the bytes of all layers."""
        return sum(layer.num_bytes for layer in self.layers)


def concat_kv(parts: Sequence[ChunkKV]) -> ChunkKV:
    """Join the frames of several forwards, in their order, by copy; raise ValueError for none at all."""
    if not parts:
        raise ValueError("expected the KV of at least one forward to join, got none")
    layers = (join_layer([part.layers[index] for part in parts]) for index in range(len(parts[0].layers)))
    return ChunkKV(tuple(layers), tuple(position for part in parts for position in part.positions))


def split_kv(kv: ChunkKV, count: int) -> list[ChunkKV]:
    """Cut the frames of a forward into `count` equal parts, as views; raise ValueError where they do not come out."""
    if count < 1 or len(kv.positions) % count:
        raise ValueError(f"expected a divisor of the {len(kv.positions)} frames, got {count=}")
    if count == 1:
        return [kv]
    frames, rows = len(kv.positions) // count, kv.layers[0].key_BSNK.shape[1] // count
    return [
        ChunkKV(
            tuple(
                LayerKV(
                    layer.key_BSNK[:, part * rows : (part + 1) * rows],
                    layer.value_BSNK[:, part * rows : (part + 1) * rows],
                )
                for layer in kv.layers
            ),
            kv.positions[part * frames : (part + 1) * frames],
        )
        for part in range(count)
    ]


def join_layer(parts: Sequence[LayerKV]) -> LayerKV:
    """Join the rows of one layer; a single part is given back, not copied."""
    if len(parts) == 1:
        return parts[0]
    keys, values = [part.key_BSNK for part in parts], [part.value_BSNK for part in parts]
    return LayerKV(torch.cat(keys, 1), torch.cat(values, 1))
