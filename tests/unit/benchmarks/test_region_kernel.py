"""The region benchmark at toy size: its keys, its shares, and the limits it holds its figures against."""

import json
import sys

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import region_kernel
from benchmarks.region_kernel import SHARES, TOY, WAN_1_3B, BlockBench


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    monkeypatch.setattr(sys, "argv", ["region_kernel", "--toy", "--frames", "2", "1", "--repeats", "1", *options])
    region_kernel.main()
    return capsys.readouterr().out


def test_json_holds_every_length_and_share(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(monkeypatch, capsys, "--json"))
    found = [(row["tokens"], row["visible"], row["seen"]) for row in document["rows"]]
    assert found == [(n, share, n * share) for n in (32, 64) for share in SHARES]
    assert all(row["attention_ms"] > 0 and row["block_ms"] > 0 for row in document["rows"])
    assert document["rows"][0]["attention_ratio"] == document["rows"][0]["block_ratio"] == 1
    summary = document["summary"]
    assert summary.keys() == {
        "self_attention_50", "self_attention_limit_50", "step_50", "step_limit_50", "tokens",
    }  # fmt: skip
    assert (summary["tokens"], summary["self_attention_limit_50"]) == (64, 4)
    assert document["parameters"]["toy"] is True


def test_table_has_one_line_per_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(monkeypatch, capsys).splitlines()
    assert lines[0].split()[:3] == ["tokens", "visible", "seen"]
    assert [line.split()[1] for line in lines[1:5]] == ["1", "0.75", "0.5", "0.25"]


def test_operations_are_those_that_torch_counts() -> None:
    shape, frames = TOY, 3
    bench = BlockBench(shape, frames, device=torch.device("cpu"), dtype=torch.float32)
    for part, operations in ((bench.step, shape.block_operations), (bench.attend, shape.attention_operations)):
        for share in SHARES:
            # The plain kernel, since torch does not count what its fused one does on a CPU.
            with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
                part(share)()
            assert counter.get_total_flops() == operations(bench.regions[share].num_see)


def test_limits_at_real_widths() -> None:
    # Self-attention at half the tokens: a quarter. The block: between a half and a quarter, nearer the longer it is.
    limits = [WAN_1_3B.block_operations(n) / WAN_1_3B.block_operations(n // 2) for n in (1_560, 7_800, 32_760, 10**8)]
    assert limits == sorted(limits)
    assert limits[0] > 2
    assert limits[-1] == pytest.approx(4, abs=0.01)


def test_a_region_step_is_the_block_on_the_seen_tokens() -> None:
    torch.manual_seed(0)
    bench = BlockBench(TOY, 2, device=torch.device("cpu"), dtype=torch.float32)
    with torch.no_grad():
        dense, half = bench.step(1.0)(), bench.step(0.5)()
    seen = bench.regions[0.5].see_R
    assert dense.shape == half.shape
    assert (half[0, seen] != 0).any(1).all()
    assert int((half != 0).any(2).sum()) == len(seen)
