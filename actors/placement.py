"""Gangs of actors: placed together in one placement group, whole or not at all.

Knows nothing about what the actors do.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class GangUnplaceable(Exception):
    """The cluster has no room for the whole gang."""

    code = "worker_lost"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """What one actor holds."""

    num_cpus: float = 0.0
    num_gpus: float = 0.0

    def resources(self) -> dict[str, float]:
        """Give it as Ray names it."""
        amounts = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        return {name: amount for name, amount in amounts.items() if amount}


def place(bundles: Sequence[Bundle], *, strategy: str, timeout_s: float) -> PlacementGroup:
    """Reserve all bundles; raises GangUnplaceable, with nothing reserved, when there is no room in time."""
    wanted = [bundle.resources() for bundle in bundles]
    group = placement_group(wanted, strategy=strategy)
    if not group.wait(timeout_s):
        remove_placement_group(group)
        free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}
        raise GangUnplaceable(
            f"no room for a gang of {len(wanted)} actors with {wanted}, strategy {strategy}, within {timeout_s:g} s; "
            f"free in the whole cluster: {free}"
        )
    return group


def bundle_options(group: PlacementGroup, number: int) -> dict[str, Any]:
    """Give the actor options that put an actor into a bundle."""
    return {
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
    }
