"""What models hold in memory beside what is planned for them: `python -m benchmarks.memory_plan [--json]`.

Every preset at each of its sizes and its longest clip: one forward and one decode of the real architecture run on
tensors that have shapes but no content, and the largest sum of what is alive at once is counted. So the real sizes
of models are measured on any machine, in seconds. `under_share` is the worst shortfall of a plan (it must not be
positive), `over_share` the worst excess.
"""

import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.report import Report, Scalar, argument_parser, publish
from reprise.wan import architectures, presets
from reprise.wan.memory import GIB, MemoryNeed
from reprise.wan.presets import ModelPreset

CASES: Final = {
    presets.tiny: architectures.tiny,
    presets.wan21_t2v_1_3b: architectures.wan21_1_3b,
    presets.wan21_t2v_14b: architectures.wan21_14b,
}


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors made under it, and the most that lived at once."""

    def __init__(self, *ignored: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        kept = [tensor for module in ignored for tensor in (*module.parameters(), *module.buffers())]
        self._known = {tensor.untyped_storage()._cdata for tensor in kept}
        self.live = self.peak = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it made."""
        made = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: Any) -> None:
        key, num_bytes = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.live += num_bytes
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, num_bytes)

    def _free(self, key: int, num_bytes: int) -> None:
        self._known.discard(key)
        self.live -= num_bytes


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One preset at one size."""

    preset: str
    size: str
    num_frames: int
    planned: MemoryNeed
    counted: MemoryNeed

    @property
    def excess(self) -> float:
        """Give by which share more is planned than was counted, weights and the larger moment together."""
        planned, counted = (need.weights + max(need.forward, need.decode) for need in (self.planned, self.counted))
        return planned / counted - 1


@torch.no_grad()
def measure(preset: ModelPreset, architecture: architectures.Architecture) -> Iterator[Measured]:
    """Run one forward and one decode at every size of a preset."""
    with FakeTensorMode():
        text_encoder = architecture.build_text_encoder(getattr(torch, preset.text_encoder_dtype))
        transformer = architecture.build_transformer(getattr(torch, preset.transformer_dtype))
        vae = architecture.build_vae(getattr(torch, preset.vae_dtype))
        weights = sum(_num_bytes(module) for module in (text_encoder, transformer, vae))
        for name, (width, height) in preset.sizes.items():
            num_frames, config = preset.max_num_frames, vae.config
            grid = (
                (num_frames - 1) // config.scale_factor_temporal + 1,
                height // config.scale_factor_spatial,
                width // config.scale_factor_spatial,
            )
            latent_BCTHW = torch.empty(1, config.z_dim, *grid, dtype=transformer.dtype)
            text_BLD = torch.empty(1, preset.max_sequence_length, transformer.config.text_dim, dtype=transformer.dtype)
            with LiveBytes(transformer) as forward:
                transformer(latent_BCTHW, torch.empty(1), text_BLD, return_dict=False)
            with LiveBytes(vae) as decode:
                vae.decode(latent_BCTHW.to(vae.dtype), return_dict=False)
            yield Measured(
                preset=preset.name,
                size=name,
                num_frames=num_frames,
                planned=preset.memory_need(name, num_frames),
                counted=MemoryNeed(weights=weights, forward=forward.peak, decode=decode.peak),
            )


def _num_bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def main() -> None:
    """Run the benchmark."""
    options = argument_parser(__doc__ or "").parse_args()
    found = [each for preset, architecture in CASES.items() for each in measure(preset(), architecture())]
    rows: list[dict[str, Scalar]] = [
        {
            "preset": each.preset,
            "size": each.size,
            "frames": each.num_frames,
            "weights_gib": each.counted.weights / GIB,
            "forward_gib": each.counted.forward / GIB,
            "forward_planned_gib": each.planned.forward / GIB,
            "decode_gib": each.counted.decode / GIB,
            "decode_planned_gib": each.planned.decode / GIB,
            "needed_gib": each.planned.peak / GIB,
        }
        for each in found
    ]
    publish(
        Report(
            name="memory_plan",
            parameters={},
            rows=rows,
            summary={
                "under_share": max(-each.excess for each in found),
                "over_share": max(each.excess for each in found),
                "largest_gib": max(each.planned.peak for each in found) / GIB,
            },
            notes=["needed_gib has the headroom of a tenth", "one clip at a time, without offload or tiling"],
        ),
        options,
    )


if __name__ == "__main__":
    main()
