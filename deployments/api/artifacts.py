"""Finished files in a local folder or under any fsspec URL, addressed by server-made ids only.

One folder per job, `<root>/<tenant>/<video id>/`, with one file per variant, and of a long video one for each piece of
its stream. A file appears whole or not at all.
Methods block: an event loop calls them through a thread. Knows nothing about jobs or HTTP.
"""

import contextlib
import dataclasses
import enum
import re
import secrets
from typing import IO, Any, Final

import fsspec

from deployments.api.tenants import TENANT_NAME

VIDEO_ID: Final = re.compile(r"video_[0-9]{16}[0-9a-f]{16}")


class Variant(enum.StrEnum):
    """The files of a finished video, by their names in the API."""

    VIDEO = "video"
    THUMBNAIL = "thumbnail"
    SPRITESHEET = "spritesheet"

    @property
    def file_name(self) -> str:
        """Give the file's name in the job's folder."""
        return _FILES[self][0]

    @property
    def media_type(self) -> str:
        """Give the file's content type."""
        return _FILES[self][1]


_FILES: Final = {
    Variant.VIDEO: ("video.mp4", "video/mp4"),
    Variant.THUMBNAIL: ("thumbnail.webp", "image/webp"),
    Variant.SPRITESHEET: ("spritesheet.jpg", "image/jpeg"),
}


def _fragment_name(number: int) -> str:
    return f"fragment-{number:05d}.mp4"


@dataclasses.dataclass(frozen=True, slots=True)
class ArtifactStore:
    """Files under one root; a plain value, so it crosses processes."""

    url: str
    """Folder or fsspec URL."""

    def put_bytes(self, tenant: str, video_id: str, variant: Variant, data: bytes) -> None:
        """Write one file; readers see the old one or the whole new one."""
        self._put(tenant, video_id, variant.file_name, data)

    def put_fragment(self, tenant: str, video_id: str, number: int, data: bytes) -> None:
        """Write the next piece of a video that is still being made; pieces are numbered from 0."""
        self._put(tenant, video_id, _fragment_name(number), data)

    def fragment(self, tenant: str, video_id: str, number: int) -> bytes | None:
        """Read one piece, None if it is not there (any more)."""
        files, folder = self._folder(tenant, video_id)
        try:
            return bytes(files.cat_file(f"{folder}/{_fragment_name(number)}"))
        except FileNotFoundError:
            return None

    def _put(self, tenant: str, video_id: str, name: str, data: bytes) -> None:
        files, folder = self._folder(tenant, video_id)
        files.makedirs(folder, exist_ok=True)
        # Beside its place, so that the move is a rename. Not fsspec's autocommit=False, which keeps every file it has
        # opened for a transaction that nobody ends, and writes to another disk.
        aside = f"{folder}/.{secrets.token_hex(8)}"
        try:
            files.pipe_file(aside, data)
            files.mv(aside, f"{folder}/{name}")
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                files.rm_file(aside)
            raise

    def size(self, tenant: str, video_id: str, variant: Variant) -> int | None:
        """Give a file's length in bytes, None if there is no such file."""
        files, folder = self._folder(tenant, video_id)
        try:
            return int(files.size(f"{folder}/{variant.file_name}"))
        except FileNotFoundError:
            return None

    def open(self, tenant: str, video_id: str, variant: Variant) -> IO[bytes] | None:
        """Open a file to read, None if there is no such file; the caller closes it."""
        files, folder = self._folder(tenant, video_id)
        try:
            file: IO[bytes] = files.open(f"{folder}/{variant.file_name}", "rb")
        except FileNotFoundError:
            return None
        return file

    def delete(self, tenant: str, video_id: str) -> None:
        """Remove every file of a job; none being there is no error."""
        files, folder = self._folder(tenant, video_id)
        try:
            files.rm(folder, recursive=True)
        except FileNotFoundError:
            return

    def _folder(self, tenant: str, video_id: str) -> tuple[Any, str]:
        if not VIDEO_ID.fullmatch(video_id) or not TENANT_NAME.fullmatch(tenant):
            raise ValueError(f"expected a tenant and a video id made by the server, got {tenant!r}, {video_id!r}")
        files, root = fsspec.url_to_fs(self.url)
        return files, f"{root.rstrip('/')}/{tenant}/{video_id}"
