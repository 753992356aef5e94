"""What every recipe shares: a resumable loop over a fixed number of steps, its log, and the weight's card.

A recipe is deterministic up to the order of floating-point sums: data and noise of step i depend on the
seed and i only, so a run that was stopped and resumed sees what an uninterrupted one sees.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

RUNS = pathlib.Path(os.environ.get("REPRISE_RUNS", "runs"))
WEIGHTS = pathlib.Path(__file__).parent.parent / "reprise" / "weights"


@dataclasses.dataclass(kw_only=True)
class Run:
    """One training run: `state` holds whatever has state_dict; progress lies in `runs/<name>`."""

    name: str
    num_steps: int
    state: Mapping[str, Any]
    save_every: int = 200
    log_every: int = 50

    def train(self, step: Callable[[int], float]) -> dict[str, float]:
        """Run `step(i) -> loss` from where the last run stopped; return what the card says."""
        folder = RUNS / self.name
        folder.mkdir(parents=True, exist_ok=True)
        path, first, seconds, smooth = folder / "state.pt", 0, 0.0, float("nan")
        if path.exists():
            saved = torch.load(path, weights_only=False)
            first, seconds, smooth = saved["step"], saved["seconds"], saved["loss"]
            for key, value in self.state.items():
                value.load_state_dict(saved["state"][key])
            print(f"{self.name}: resumed at step {first} of {self.num_steps}", flush=True)
        start, cpu_start = time.perf_counter() - seconds, time.process_time()
        for index in range(first, self.num_steps):
            loss = step(index)
            smooth = loss if smooth != smooth else 0.97 * smooth + 0.03 * loss
            done = index + 1
            if done % self.log_every == 0:
                elapsed = time.perf_counter() - start
                rate = (done - first) / max(elapsed - seconds, 1e-9)
                print(
                    f"{self.name} {done}/{self.num_steps} loss {smooth:.4f} {elapsed:.0f} s, "
                    f"{(self.num_steps - done) / rate:.0f} s left",
                    flush=True,
                )
            if done % self.save_every == 0 or done == self.num_steps:
                elapsed = time.perf_counter() - start
                payload = {key: value.state_dict() for key, value in self.state.items()}
                torch.save({"step": done, "seconds": elapsed, "loss": smooth, "state": payload}, f"{path}.new")
                os.replace(f"{path}.new", path)
        return {
            "steps": float(self.num_steps),
            "loss": smooth,
            "seconds": round(time.perf_counter() - start, 1),
            "cpu_seconds_this_run": round(time.process_time() - cpu_start, 1),
        }


class Average:
    """Exponential moving average of a module's parameters, with a warm-up of its decay."""

    def __init__(self, module: nn.Module, *, decay: float) -> None:
        self.decay, self.count = decay, 0
        self.shadow = {name: value.detach().clone() for name, value in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move towards the module's parameters."""
        self.count += 1
        rate = 1 - min(self.decay, (self.count + 1) / (self.count + 10))
        live = dict(module.named_parameters())
        torch._foreach_lerp_(list(self.shadow.values()), [live[name].detach() for name in self.shadow], rate)

    def copy_to(self, module: nn.Module) -> None:
        """Give the module the averaged parameters."""
        module.load_state_dict(self.shadow, strict=False)

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed run needs."""
        return {"count": self.count, "shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        self.count, self.shadow = state["count"], state["shadow"]


def generator_for(seed: int, index: int) -> torch.Generator:
    """Give the generator of one step, so that a resumed run draws what the first one would have."""
    return torch.Generator().manual_seed(seed * 1_000_003 + index)


def save_half(module: nn.Module, path: pathlib.Path) -> None:
    """Save a module's weights as fp16 safetensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights: dict[str, Tensor] = {k: v.detach().half().contiguous() for k, v in module.state_dict().items()}
    save_file(weights, path, metadata={"format": "pt"})


def load_half(module: nn.Module, path: pathlib.Path) -> None:
    """Load what `save_half` wrote into a float32 module."""
    module.load_state_dict({k: v.float() for k, v in load_file(path).items()})


def write_card(folder: pathlib.Path, *, title: str, recipe: str, text: str, facts: Mapping[str, Any]) -> None:
    """Write `card.md`: what the weights are, the command that made them, its figures, the files' hashes."""
    lines = [f"# {title}", "", text.strip(), "", f"Made by `{recipe}`.", "", "| fact | value |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in facts.items()]
    lines += ["", "| file | bytes | sha256 |", "|---|---|---|"]
    for path in sorted(folder.glob("*.safetensors")):
        lines.append(f"| {path.name} | {path.stat().st_size} | {hashlib.sha256(path.read_bytes()).hexdigest()} |")
    (folder / "card.md").write_text("\n".join(lines) + "\n")
    print(json.dumps(dict(facts)), flush=True)
