"""Muon: momentum whose matrix update is orthogonalised by five Newton-Schulz steps, in float32.

torch.optim.Muon runs these steps in bfloat16, which a CPU without bfloat16 units emulates slowly; here
matrices of one shape are stacked and orthogonalised together in float32.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

_A, _B, _C = 3.4445, -4.7750, 2.0315
"""Coefficients of the quintic that pushes singular values towards one (Jordan et al., 2024)."""


def orthogonalise(matrices_NRC: Tensor, *, steps: int = 5) -> Tensor:
    """Move every singular value of N matrices near one."""
    x = matrices_NRC / (matrices_NRC.norm(dim=(1, 2), keepdim=True) + 1e-7)
    transpose = x.shape[1] > x.shape[2]
    x = x.mT if transpose else x
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return cast(Tensor, x.mT if transpose else x)


class Muon(torch.optim.Optimizer):
    """Apply orthogonalised Nesterov momentum to matrices only."""

    def __init__(
        self, params: Iterable[Tensor], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(list(params), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                self._step_shape(shape, parameters, group["lr"], group["momentum"], group["weight_decay"])

    def _step_shape(
        self, shape: torch.Size, parameters: list[Tensor], lr: float, momentum: float, decay: float
    ) -> None:
        updates = []
        for parameter in parameters:
            assert parameter.grad is not None
            velocity = self.state[parameter].setdefault("velocity", torch.zeros_like(parameter))
            velocity.lerp_(parameter.grad, 1 - momentum)
            updates.append(parameter.grad.lerp(velocity, momentum))
        scale = max(1.0, shape[0] / shape[1]) ** 0.5
        for parameter, update in zip(parameters, orthogonalise(torch.stack(updates)), strict=True):
            parameter.mul_(1 - lr * decay).add_(update, alpha=-lr * scale)


def split_parameters(transformer: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Sort what is trained into the matrices of the blocks, which Muon updates, and all the rest."""
    named: dict[str, Tensor] = {name: p for name, p in transformer.named_parameters() if p.requires_grad}
    matrices = [p for n, p in named.items() if p.ndim == 2 and n.startswith("wan.blocks") and "table" not in n]
    return matrices, [p for p in named.values() if all(p is not matrix for matrix in matrices)]
