"""A role's adapter acts only inside its context and thread, is exact, and survives the disk."""

import dataclasses
import json
import pathlib
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from reprise.errors import CheckpointError
from reprise.wan.adapter import (
    ATTENTION_PROJECTIONS,
    CONFIG_FILE,
    WEIGHTS_FILE,
    AdapterConfig,
    Role,
    RoleAdapter,
    adapted,
    load_adapter,
    new_adapter,
    save_adapter,
)
from reprise.wan.causal import causal_forward, encode_prompt_kv
from tests.unit.reprise.regions import PATCHES, latent_of, transformer

CONFIG = AdapterConfig(rank=4, alpha=8.0)
STEP = torch.tensor([600.25])


@pytest.fixture(scope="module")
def net() -> Any:
    return transformer(PATCHES["patch 2"])


def fresh(net: Any, role: Role = Role.PLANNER, config: AdapterConfig = CONFIG) -> RoleAdapter:
    return new_adapter(net, role, config, generator=torch.Generator().manual_seed(1))


def trained(net: Any, role: Role, seed: int, config: AdapterConfig = CONFIG) -> RoleAdapter:
    """Give an adapter whose every tensor is random."""
    generator = torch.Generator().manual_seed(seed)
    adapter = fresh(net, role, config)
    drawn = {name: 0.3 * torch.randn(part.shape, generator=generator) for name, part in adapter.tensors.items()}
    return dataclasses.replace(adapter, tensors=drawn)


def forward(net: Any, adapter: RoleAdapter | None = None) -> Tensor:
    text = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(5))
    with adapted(net, adapter):
        velocity, _ = causal_forward(
            net,
            latent_of(1, 1, (3, 4, 6)).to(net.dtype),
            STEP,
            encode_prompt_kv(net, text.to(net.dtype)),
            positions=range(3),
        )
    return velocity


def num_hooks(net: Any) -> int:
    return sum(len(module._forward_hooks) for module in net.modules())


def test_no_adapter_and_one_of_zero_weights_change_no_bit(net: Any) -> None:
    plain = forward(net)
    assert torch.equal(forward(net, fresh(net)), plain)
    half = transformer(PATCHES["patch 2"]).bfloat16()
    assert torch.equal(forward(half, fresh(half)), forward(half))
    with adapted(net, None):
        assert num_hooks(net) == 0


def test_an_adapter_leaves_no_trace(net: Any) -> None:
    plain, weights = forward(net), {name: part.clone() for name, part in net.state_dict().items()}
    classes = [type(module) for module in net.modules()]
    assert (forward(net, trained(net, Role.PLANNER, 2)) - plain).abs().max() > 0.01
    with pytest.raises(KeyboardInterrupt), adapted(net, trained(net, Role.PLANNER, 2)):
        raise KeyboardInterrupt
    assert num_hooks(net) == 0
    assert torch.equal(forward(net), plain)
    assert classes == [type(module) for module in net.modules()]
    assert all(torch.equal(part, weights[name]) for name, part in net.state_dict().items())


def folded(adapter: RoleAdapter) -> Any:
    """The reference: a model of its own with the update in its weights and the role in the last bias of the time."""
    merged = transformer(PATCHES["patch 2"])
    for index in range(len(merged.blocks)):
        for target in adapter.config.targets:
            name = f"blocks.{index}.{target}"
            down, up = adapter.tensors[f"{name}.lora_A.weight"], adapter.tensors[f"{name}.lora_B.weight"]
            merged.get_submodule(name).weight.add_(adapter.config.alpha / adapter.config.rank * (up @ down))
    merged.condition_embedder.time_embedder.linear_2.bias.add_(adapter.tensors["role_embedding"])
    return merged


@pytest.mark.parametrize("targets", [ATTENTION_PROJECTIONS, ("attn1.to_q",)])
def test_the_update_is_that_of_folded_weights(net: Any, targets: tuple[str, ...]) -> None:
    adapter = trained(net, Role.RENDERER, 3, dataclasses.replace(CONFIG, targets=targets))
    # Equal sums in another order, through weights several times larger.
    torch.testing.assert_close(forward(net, adapter), forward(folded(adapter)), rtol=1e-4, atol=1e-4)


def test_it_works_on_the_dense_forward_too(net: Any) -> None:
    adapter, text = trained(net, Role.RENDERER, 3), torch.randn(1, 7, 32)
    arguments = latent_of(1, 1, (3, 4, 6)), STEP, text
    with adapted(net, adapter):
        dense = net(*arguments, return_dict=False)[0]
        causal, _ = causal_forward(net, *arguments[:2], encode_prompt_kv(net, text), positions=range(3))
    assert torch.equal(dense, causal)


@pytest.mark.parametrize("part", ["role_embedding", "blocks.1.attn1.to_k.lora_B.weight"])
def test_each_part_counts(net: Any, part: str) -> None:
    adapter, changed = fresh(net), trained(net, Role.PLANNER, 2)
    one = dataclasses.replace(adapter, tensors={**adapter.tensors, part: changed.tensors[part]})
    assert (forward(net, one) - forward(net)).abs().max() > 1e-4


def test_roles_on_two_threads_do_not_mix(net: Any) -> None:
    roles = [trained(net, Role.PLANNER, 2), trained(net, Role.RENDERER, 3), None]
    alone = [forward(net, adapter) for adapter in roles]
    assert not torch.equal(alone[0], alone[1])
    meeting, found = threading.Barrier(len(roles)), [torch.empty(0)] * len(roles)

    def run(index: int) -> None:
        with adapted(net, roles[index]):
            meeting.wait(timeout=30)  # now every thread's hooks are installed
            found[index] = forward(net)
            meeting.wait(timeout=30)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(roles))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))
    assert num_hooks(net) == 0


def test_every_tensor_gets_a_gradient(net: Any) -> None:
    adapter = trained(net, Role.PLANNER, 2)
    parameters = {name: part.requires_grad_() for name, part in adapter.tensors.items()}
    gradients = torch.autograd.grad(forward(net, adapter).square().sum(), list(parameters.values()))
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_an_adapter_survives_the_disk(net: Any, tmp_path: pathlib.Path) -> None:
    targets = ("attn1.to_q", "attn1.to_out.0")
    adapter = trained(net, Role.RENDERER, 3, AdapterConfig(rank=2, alpha=3.0, targets=targets))
    save_adapter(adapter, tmp_path / "renderer")
    loaded = load_adapter(tmp_path / "renderer")
    assert (loaded.role, loaded.config) == (Role.RENDERER, adapter.config)
    assert torch.equal(forward(net, loaded), forward(net, adapter))
    assert loaded.to("cpu", torch.bfloat16).tensors["role_embedding"].dtype == torch.bfloat16


def test_broken_folders_are_refused(net: Any, tmp_path: pathlib.Path) -> None:
    with pytest.raises(CheckpointError, match=CONFIG_FILE):
        load_adapter(tmp_path)
    save_adapter(fresh(net), tmp_path)
    (tmp_path / WEIGHTS_FILE).rename(tmp_path / "other")
    with pytest.raises(CheckpointError, match="found none"):
        load_adapter(tmp_path)
    settings = json.loads((tmp_path / CONFIG_FILE).read_text())
    for change in ({"role": "director"}, {"rank": 0}, {"unknown": 1}):
        (tmp_path / CONFIG_FILE).write_text(json.dumps({**settings, **change}))
        with pytest.raises(CheckpointError, match="settings of a role adapter"):
            load_adapter(tmp_path)


def test_an_adapter_of_another_transformer_is_refused(net: Any) -> None:
    adapter = fresh(net)
    rest = {name: part for name, part in adapter.tensors.items() if name != "blocks.2.attn2.to_v.lora_A.weight"}
    with (
        pytest.raises(ValueError, match=r"first odd tensor: blocks\.2\.attn2\.to_v\.lora_A\.weight"),
        adapted(net, dataclasses.replace(adapter, tensors=rest)),
    ):
        pass
    assert num_hooks(net) == 0


def test_an_update_is_scaled_by_alpha_over_rank(net: Any) -> None:
    adapter = trained(net, Role.PLANNER, 2)
    layer, name = net.blocks[0].attn1.to_q, "blocks.0.attn1.to_q"
    rows = torch.randn(5, layer.in_features)
    with adapted(net, adapter):
        found = layer(rows) - F.linear(rows, layer.weight, layer.bias)
    down, up = adapter.tensors[f"{name}.lora_A.weight"], adapter.tensors[f"{name}.lora_B.weight"]
    torch.testing.assert_close(found, 2.0 * rows @ down.T @ up.T, rtol=1e-4, atol=1e-4)
