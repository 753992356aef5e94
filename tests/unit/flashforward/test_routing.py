"""KV goes to those who read it and is forgotten after its last reader, whatever the schedule."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.flashforward.layout import Layout
from reprise.flashforward.routing import KvKey, keys_of, route
from reprise.flashforward.schedule import Forward, Placement, flash_forward
from tests.unit.flashforward.lists import LISTS


def replay(forwards: list[Forward]) -> int:
    """Keep and forget as the routes say; give the most entries that any worker held."""
    banks: dict[int, set[KvKey]] = {forward.worker: set() for forward in forwards}
    most = 0
    for routed in route(forwards):
        bank = banks[routed.forward.worker]
        for span in routed.forward.reads:
            assert set(keys_of(span)) <= bank, "what is read is there"
        assert set(routed.forgets) <= bank, "nothing is forgotten twice"
        bank -= set(routed.forgets)
        for worker, keys in routed.keeps.items():
            assert banks[worker].isdisjoint(keys), "nothing is published twice"
            banks[worker] |= set(keys)
        most = max(most, *map(len, banks.values()))
    assert not any(banks.values()), "nothing is left that nobody reads"
    return most


@pytest.mark.parametrize("name", LISTS)
@given(num_latents=st.integers(1, 120), num_stages=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_every_entry_is_there_when_read_and_gone_after(name: str, num_latents: int, num_stages: int) -> None:
    replay(list(LISTS[name](Layout(num_latents=num_latents, num_stages=num_stages))))


FLAT: dict[str, Callable[[Layout], Iterator[Forward]]] = {
    name: make for name, make in LISTS.items() if Placement.PLANNER_FIRST not in name
}


@pytest.mark.parametrize("name", FLAT)
def test_what_is_held_does_not_grow_with_the_video(name: str) -> None:
    peaks = [replay(list(FLAT[name](Layout(num_latents=num_latents)))) for num_latents in (81, 161, 321)]
    assert peaks[0] == peaks[1] == peaks[2]


def test_a_latent_is_taken_up_until_its_last_forward() -> None:
    forwards = list(flash_forward(Layout(num_latents=12), Placement.ONE_WORKER))
    last = [routed.forward for routed in route(forwards) if routed.is_last]
    assert {(forward.source, forward.unit) for forward in forwards} == {(one.source, one.unit) for one in last}
    assert len(last) == len({(one.source, one.unit) for one in last})
    assert {forward.stage for forward in last} == {3, 4}, "renderer's last stage, and the planner's extraction"
