"""Each kind of fault once, under running jobs: they end well or say why not, and the golden request after it gives its
golden clip.
"""

import concurrent.futures
import random
import threading
import time

import pytest

from load_tests.faults.customers import PROMPTS, SHORTEST, Customer, End, Oracle, Outcome
from load_tests.faults.kinds import FAULTS, inject
from load_tests.faults.plant import Plant
from load_tests.faults.survey import survey

GOLDEN = {"prompt": PROMPTS[0], "seed": 0, "reuse": "off", **SHORTEST}
REUSING = {"prompt": PROMPTS[1], "seed": 1, "reuse": "chorus", **SHORTEST}


@pytest.fixture(autouse=True, scope="package")
def calm(plant: Plant, oracle: Oracle) -> None:
    """Make the golden clip, and a source and a hit of it, while nothing is broken."""
    customer = Customer(plant.url, oracle, seed=1)
    for body in (GOLDEN, REUSING | {"prompt": PROMPTS[0]}, REUSING):
        assert customer.run(body).end is End.COMPLETED
    customer.close()


def keep_asking(plant: Plant, oracle: Oracle, fault: threading.Thread, *, seed: int) -> list[Outcome]:
    """Ask for one clip after the other from before the fault until after it."""
    customer = Customer(plant.url, oracle, seed=seed)
    ends: list[Outcome] = []
    while fault.is_alive() or not ends:
        ends.append(customer.run(customer.random_body()))
    ends += [customer.run(body) for body in (REUSING, GOLDEN)]
    customer.close()
    return ends


@pytest.mark.parametrize("name", FAULTS)
def test_jobs_end_well_or_say_why_and_the_next_is_as_ever(
    name: str, plant: Plant, oracle: Oracle, customer: Customer
) -> None:
    def wait_and_break() -> None:
        time.sleep(0.3)  # jobs are under way by then
        inject(name, plant, random.Random(name))

    fault = threading.Thread(target=wait_and_break)
    fault.start()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asking = [pool.submit(keep_asking, plant, oracle, fault, seed=seed) for seed in (2, 3)]
        ends = [outcome for each in asking for outcome in each.result()]
    assert {outcome.end for outcome in ends} <= {End.COMPLETED, End.FAILED}, ends
    after = customer.run(GOLDEN)
    assert after.end is End.COMPLETED, after


def test_nothing_is_left_over(plant: Plant, customer: Customer) -> None:
    gone = customer.run(REUSING | {"seed": 2}, delete=True)
    assert gone.end is End.DELETED
    assert gone.video_id is not None
    left = survey(plant, deleted=[gone.video_id])
    assert left.count == 0, left
