"""One server to be broken for all tests of this folder."""

import pathlib
from collections.abc import Iterator

import pytest

from load_tests.faults.customers import Customer, Oracle
from load_tests.faults.plant import Plant, running


@pytest.fixture(scope="package")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    folder: pathlib.Path = tmp_path_factory.mktemp("plant")
    with running(folder) as plant:
        yield plant


@pytest.fixture(scope="package")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def customer(plant: Plant, oracle: Oracle) -> Iterator[Customer]:
    customer = Customer(plant.url, oracle, seed=0)
    yield customer
    customer.close()
