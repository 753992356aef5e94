"""Gangs of actors: placed together in one placement group, whole or not at all.

Knows nothing about what the actors do.
"""

import dataclasses
import secrets
from collections.abc import Sequence
from typing import Any

import ray
from ray import PlacementGroupID
from ray._private.state import actors
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
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


def place(bundles: Sequence[Bundle], *, kind: str, strategy: str, timeout_s: float) -> PlacementGroup:
    """Reserve all bundles; raises GangUnplaceable, with nothing reserved, when there is no room in time.

    Ray keeps a placement group whose creator is an actor until the whole job ends, even if that actor is long dead. So
    groups are named after `kind` and their creator, and those of dead creators of the kind are given back first.
    """
    release_orphans(kind)
    wanted = [bundle.resources() for bundle in bundles]
    creator = ray.get_runtime_context().get_actor_id()
    group = placement_group(wanted, strategy=strategy, name=f"{kind}:{creator or 'driver'}:{secrets.token_hex(4)}")
    if not group.wait(timeout_s):
        remove_placement_group(group)
        free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}
        raise GangUnplaceable(
            f"no room for a gang of {len(wanted)} actors with {wanted}, strategy {strategy}, within {timeout_s:g} s; "
            f"free in the whole cluster: {free}"
        )
    return group


def release_orphans(kind: str) -> int:
    """Remove the placement groups of a kind whose creators are dead; gives how many there were."""
    count = 0
    for entry in placement_group_table().values():
        owner, _, rest = entry["name"].partition(":")
        creator = rest.partition(":")[0]
        if owner != kind or entry["state"] == "REMOVED" or creator == "driver":
            continue
        if actors(creator).get("State") == "DEAD":
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(entry["placement_group_id"])))
            count += 1
    return count


def bundle_options(group: PlacementGroup, number: int) -> dict[str, Any]:
    """Give the actor options that put an actor into a bundle."""
    return {
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
    }
