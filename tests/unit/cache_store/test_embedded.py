"""The embedded server: persists, is never started twice, is left to its owner, and fails with a useful text."""

import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

from cache_store.connection import connect, warn_of_limits
from cache_store.contracts import EntryKey
from cache_store.embedded import EmbeddedConfig, EmbeddedValkey
from cache_store.entries.redis import RedisEntryStore
from cache_store.errors import StoreError, StoreUnavailableError
from cache_store.testing.samples import ENCODER

START = """
import pathlib, os, sys
from cache_store.embedded import EmbeddedConfig, EmbeddedValkey
server = EmbeddedValkey(EmbeddedConfig(data_dir=pathlib.Path(sys.argv[1])))
server.start()
"""


def server_in(folder: pathlib.Path) -> EmbeddedValkey:
    return EmbeddedValkey(EmbeddedConfig(data_dir=folder, max_memory_bytes=64 << 20))


def python(code: str, folder: pathlib.Path) -> None:
    subprocess.run([sys.executable, "-c", START + code, str(folder)], check=True, timeout=60)


def pid_of(server: EmbeddedValkey) -> int:
    return int(connect(server.url, timeout_s=5).info("server")["process_id"])


def test_data_survives_a_restart(tmp_path: pathlib.Path) -> None:
    server = server_in(tmp_path / "a folder with spaces")
    server.start()
    connect(server.url, timeout_s=5).set("key", b"value", ex=600)
    server.stop()
    server.stop()
    server.start()
    assert connect(server.url, timeout_s=5).get("key") == b"value"
    server.stop()


def test_a_path_too_long_for_a_socket_still_works(tmp_path: pathlib.Path) -> None:
    server = server_in(tmp_path / ("x" * 120))
    server.start()
    assert connect(server.url, timeout_s=5).ping()
    server.stop()


def test_the_server_refuses_writes_rather_than_evict(valkey_url: str, caplog: pytest.LogCaptureFixture) -> None:
    client = connect(valkey_url, timeout_s=5)
    with caplog.at_level(logging.WARNING):
        warn_of_limits(client, capacity_bytes=400 << 20)
        assert caplog.text == ""
        warn_of_limits(client, capacity_bytes=500 << 20)
        assert "leave a fifth free" in caplog.text
        client.config_set("maxmemory-policy", "allkeys-lru")
        warn_of_limits(client, capacity_bytes=400 << 20)
        assert "set noeviction" in caplog.text
        client.config_set("maxmemory-policy", "noeviction")


def test_a_running_server_is_shared_and_left_to_its_owner(tmp_path: pathlib.Path) -> None:
    server = server_in(tmp_path)
    server.start()
    pid = pid_of(server)
    python("server.stop()", tmp_path)
    assert pid_of(server) == pid
    server.stop()


def test_two_starts_at_once_make_one_server(tmp_path: pathlib.Path) -> None:
    servers = [server_in(tmp_path) for _ in range(4)]
    threads = [threading.Thread(target=server.start) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({pid_of(server) for server in servers}) == 1
    assert (tmp_path / "valkey.log").read_text().count("Ready to accept connections") == 1
    for server in servers:
        server.stop()


def test_the_server_of_a_dead_process_is_adopted(tmp_path: pathlib.Path) -> None:
    python("os._exit(0)", tmp_path)
    server = server_in(tmp_path)
    server.start()
    assert server._process is None
    server.stop()
    assert not server._listens()


def test_the_server_ends_with_its_process(tmp_path: pathlib.Path) -> None:
    python("", tmp_path)
    assert not server_in(tmp_path)._listens()


def test_a_server_that_cannot_start_names_its_log(tmp_path: pathlib.Path) -> None:
    (tmp_path / "appendonlydir").write_text("in the way")
    with pytest.raises(StoreError, match=r"ended with code .*valkey\.log"):
        server_in(tmp_path).start()


def test_a_frozen_server_is_a_fault_not_a_hang(tmp_path: pathlib.Path) -> None:
    """And the same client goes on once the server does."""
    server = server_in(tmp_path)
    server.start()
    pid = pid_of(server)
    store = RedisEntryStore(connect(server.url, timeout_s=0.5), encoder=ENCODER, ttl_s=60)
    key = EntryKey(tenant="t", source_id="v")
    assert store.get_many([key]) == [None]
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(2):  # on a connection of old, and on a new one
            with pytest.raises(StoreUnavailableError, match="check that the server runs"):
                store.get_many([key])
    finally:
        os.kill(pid, signal.SIGCONT)
    assert connect(server.url, timeout_s=10).ping()
    assert store.get_many([key]) == [None]
    server.stop()
    with pytest.raises(StoreUnavailableError):
        store.get_many([key])
    server.start()
    assert store.get_many([key]) == [None]
    server.stop()


def test_bad_settings_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="max_memory_bytes"):
        EmbeddedConfig(data_dir=tmp_path, max_memory_bytes=0)
    with pytest.raises(ValueError, match="timeout_s"):
        connect("redis://localhost", timeout_s=0)


def test_a_server_that_is_gone_fails_its_check(tmp_path: pathlib.Path) -> None:
    server = EmbeddedValkey(EmbeddedConfig(data_dir=tmp_path))
    server.start()
    server.check()
    server.stop()
    with pytest.raises(StoreError, match=r"valkey\.log"):
        server.check()
