"""Parts that every test may use: one real Valkey server per session."""

import os
import pathlib
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from cache_store.embedded import EmbeddedConfig, EmbeddedValkey

# Said before anything imports Ray, so that no test depends on what lies in ~/.ray.
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

# No test asserts on time, and a busy machine is not a fault.
settings.register_profile("reprise", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("reprise")


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """URL of a Valkey server of this session's own; tests share it, so each uses keys or tenants of its own."""
    with tempfile.TemporaryDirectory(prefix="reprise-valkey-") as folder:
        server = EmbeddedValkey(EmbeddedConfig(data_dir=pathlib.Path(folder), max_memory_bytes=512 << 20))
        server.start()
        yield server.url
        server.stop()
