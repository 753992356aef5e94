"""Unit tests run without Ray: starting it is an error here."""

from typing import Any, NoReturn

import pytest
import ray


@pytest.fixture(autouse=True)
def forbid_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `ray.init` raise."""

    def refuse(*_args: Any, **_options: Any) -> NoReturn:
        raise RuntimeError("a unit test started Ray: move it to tests/serve, or give the code a fake")

    monkeypatch.setattr(ray, "init", refuse)
