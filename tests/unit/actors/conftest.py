"""Small models gain nothing from more threads, and lose much beside another busy process."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
