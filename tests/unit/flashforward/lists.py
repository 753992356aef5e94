"""Every schedule on every placement, for tests that hold for all of them."""

from collections.abc import Callable, Iterator
from functools import partial

from reprise.flashforward.layout import Layout
from reprise.flashforward.schedule import Forward, Placement, flash_forward, hiar, self_forcing

FLASH_FORWARD: dict[str, Callable[[Layout], Iterator[Forward]]] = {
    f"flashforward, {placement}": partial(flash_forward, placement=placement) for placement in Placement
}
BASELINES: dict[str, Callable[[Layout], Iterator[Forward]]] = {
    "self_forcing": self_forcing,
    "hiar, one worker": partial(hiar, placement=Placement.ONE_WORKER),
    "hiar, worker per stage": partial(hiar, placement=Placement.WORKER_PER_STAGE),
}
LISTS = FLASH_FORWARD | BASELINES
