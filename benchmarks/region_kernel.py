"""What region denoising saves in one Wan block: `python -m benchmarks.region_kernel [--json]` (Chorus, section 3.3.3).

A diffusers WanTransformerBlock at the widths of Wan2.1-T2V-1.3B with random weights, since speed does not depend on
their values. For every sequence length the attention operation and the whole block run on all tokens and on the
seen ones, in turn, so that a busy moment hits all alike. The region's block pays for gathering its tokens and
scattering them back each time, which a model does once for all its blocks. The limit is the ratio of operations;
on a machine that does other work too, few rounds scatter around it, above it as well.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Final

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed, WanTransformerBlock
from torch import Tensor

from benchmarks.report import Report, Scalar, argument_parser, publish
from reprise.chorus.masks import Grid, region_masks
from reprise.chorus.region import RegionIndex, gather_region, region_index, scatter_region

PATCH: Final = (1, 1, 1)
"""The grids below are of tokens."""
SHARES: Final = (1.0, 0.75, 0.5, 0.25)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlockShape:
    """Widths of a block and the grids it is measured on."""

    num_heads: int
    head_dim: int
    ffn_dim: int
    text_length: int
    frame: tuple[int, int]
    """Rows and columns of tokens in a frame; columns divide by four, so that every share is exact."""

    @property
    def dim(self) -> int:
        """Width of a token."""
        return self.num_heads * self.head_dim

    def grid(self, num_frames: int) -> Grid:
        """Give the token grid of so many latent frames."""
        return (num_frames, *self.frame)

    def attention_operations(self, rows: int) -> int:
        """Count multiplications and additions of self-attention without its projections."""
        return 4 * rows * rows * self.dim

    def block_operations(self, rows: int) -> int:
        """Count those of the whole block; the text's own projections do not depend on the rows."""
        projections = (2 * 4 + 2 * 2) * rows * self.dim**2
        feed_forward = 2 * 2 * rows * self.dim * self.ffn_dim
        cross = 4 * rows * self.text_length * self.dim + 2 * 2 * self.text_length * self.dim**2
        return projections + feed_forward + cross + self.attention_operations(rows)


WAN_1_3B: Final = BlockShape(num_heads=12, head_dim=128, ffn_dim=8960, text_length=512, frame=(30, 52))
"""832x480 pixels."""
TOY: Final = BlockShape(num_heads=2, head_dim=12, ffn_dim=32, text_length=8, frame=(4, 8))


class BlockBench:
    """One block, its inputs on one grid, and an index for each share."""

    def __init__(self, shape: BlockShape, num_frames: int, *, device: torch.device, dtype: torch.dtype) -> None:
        T, H, W = grid = shape.grid(num_frames)
        self.num_tokens = T * H * W
        block = WanTransformerBlock(shape.dim, shape.ffn_dim, shape.num_heads, cross_attn_norm=True)
        self._block = block.eval().requires_grad_(False).to(device, dtype)
        rope = WanRotaryPosEmbed(shape.head_dim, PATCH, max(grid))
        self._rotary = tuple(part.to(device) for part in rope(torch.empty(1, 1, *grid)))
        self._text_BLD = torch.randn(1, shape.text_length, shape.dim).to(device, dtype)
        self._modulation_B6D = torch.randn(1, 6, shape.dim).to(device, dtype)
        self._tokens_BSD = torch.randn(1, self.num_tokens, shape.dim).to(device, dtype)
        self._heads = torch.randn(3, 1, self.num_tokens, shape.num_heads, shape.head_dim).to(device, dtype)
        self.regions = {share: _leftmost(grid, share).to(device) for share in SHARES}

    def attend(self, share: float) -> Callable[[], Tensor]:
        """Prepare the attention operation on so many tokens."""
        query, key, value = self._heads[:, :, : self.regions[share].num_see].contiguous()

        def run() -> Tensor:
            attended: Tensor = dispatch_attention_fn(query, key, value)
            return attended

        return run

    def step(self, share: float) -> Callable[[], Tensor]:
        """Prepare the whole block on so many tokens; a share of 1 is the dense block, without gather and scatter."""
        region = self.regions[share]

        def run_dense() -> Tensor:
            tokens_BSD: Tensor = self._block(self._tokens_BSD, self._text_BLD, self._modulation_B6D, self._rotary)
            return tokens_BSD

        def run_region() -> Tensor:
            rotary = tuple(gather_region(part, region.see_R) for part in self._rotary)
            tokens_BRD = gather_region(self._tokens_BSD, region.see_R)
            tokens_BRD = self._block(tokens_BRD, self._text_BLD, self._modulation_B6D, rotary)
            return scatter_region(tokens_BRD, region.see_R, num_tokens=region.num_tokens)

        return run_dense if share == 1 else run_region


def _leftmost(grid: Grid, share: float) -> RegionIndex:
    seen_THW = torch.zeros(grid, dtype=torch.bool)
    seen_THW[:, :, : round(share * grid[2])] = True
    return region_index(region_masks(seen_THW, edit_radius=0, see_radius=0), PATCH)


def median_ms(parts: dict[float, Callable[[], Tensor]], *, repeats: int, device: torch.device) -> dict[float, float]:
    """Time every share once a round; the first round only warms up."""
    times: dict[float, list[float]] = {share: [] for share in parts}
    for turn in range(repeats + 1):
        for share, run in parts.items():
            _wait(device)
            begin = time.perf_counter()
            run()
            _wait(device)
            if turn > 0:
                times[share].append(1_000 * (time.perf_counter() - begin))
    return {share: statistics.median(values) for share, values in times.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.no_grad()
def measure(
    shape: BlockShape, num_frames: int, *, repeats: int, device: torch.device, dtype: torch.dtype
) -> list[dict[str, Scalar]]:
    """Measure one sequence length: a row for every share."""
    bench = BlockBench(shape, num_frames, device=device, dtype=dtype)
    attention = median_ms({s: bench.attend(s) for s in SHARES}, repeats=repeats, device=device)
    step = median_ms({s: bench.step(s) for s in SHARES}, repeats=repeats, device=device)
    rows: list[dict[str, Scalar]] = []
    for share, region in bench.regions.items():
        seen, every = region.num_see, bench.num_tokens
        rows.append(
            {
                "tokens": every,
                "visible": share,
                "seen": seen,
                "attention_ms": attention[share],
                "attention_ratio": attention[1.0] / attention[share],
                "attention_limit": shape.attention_operations(every) / shape.attention_operations(seen),
                "block_ms": step[share],
                "block_ratio": step[1.0] / step[share],
                "block_limit": shape.block_operations(every) / shape.block_operations(seen),
            }
        )
    return rows


def run(options: argparse.Namespace) -> Report:
    """Measure every length and sum the longest up."""
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = TOY if options.toy else WAN_1_3B
    torch.manual_seed(options.seed)
    rows: list[dict[str, Scalar]] = []
    for num_frames in sorted(options.frames):
        rows += measure(shape, num_frames, repeats=options.repeats, device=device, dtype=dtype)
    [half] = (row for row in rows[-len(SHARES) :] if row["visible"] == 0.5)
    parameters: dict[str, Scalar] = {
        "toy": options.toy, "device": str(device), "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(), "frames": " ".join(map(str, sorted(options.frames))),
        "repeats": options.repeats, "dim": shape.dim, "heads": shape.num_heads, "ffn_dim": shape.ffn_dim,
        "text_length": shape.text_length,
    }  # fmt: skip
    names = {
        "self_attention_50": "attention_ratio", "self_attention_limit_50": "attention_limit",
        "step_50": "block_ratio", "step_limit_50": "block_limit", "tokens": "tokens",
    }  # fmt: skip
    return Report(
        name="region_kernel",
        parameters=parameters,
        rows=rows,
        summary={key: _number(half, column) for key, column in names.items()},
        notes=[
            "the summary is of the longest sequence at half the tokens visible; times are medians of alternate runs"
        ],
    )


def _number(row: dict[str, Scalar], name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return value


def main() -> None:
    """Parse the options and print the report."""
    parser = argument_parser("Time of one Wan block on a region of its tokens, against all of them.")
    parser.add_argument("--device", default="cpu", help="torch device; a GPU runs in bfloat16")
    parser.add_argument("--toy", action="store_true", help="a block small enough for a test; its ratios say nothing")
    parser.add_argument("--frames", type=int, nargs="+", default=[1, 2, 5], help="latent frames of 30x52 tokens")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds a length, after one to warm up")
    options = parser.parse_args()
    publish(run(options), options)


if __name__ == "__main__":
    main()
