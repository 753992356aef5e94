"""Files come back whole, only under ids of the server's own, on a folder and on another fsspec backend alike."""

import gc
import pathlib
import pickle
import uuid

import pytest
from fsspec.implementations.local import LocalFileOpener

from deployments.api.artifacts import ArtifactStore, Variant

VIDEO_ID = "video_0123456789012345" + "0123456789abcdef"


@pytest.fixture(params=["folder", "url", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> ArtifactStore:
    urls = {"folder": str(tmp_path), "url": f"file://{tmp_path}/files/", "memory": f"memory://{uuid.uuid4()}"}
    return ArtifactStore(urls[request.param])


def test_a_file_comes_back(store: ArtifactStore) -> None:
    assert store.size("a", VIDEO_ID, Variant.VIDEO) is None
    assert store.open("a", VIDEO_ID, Variant.VIDEO) is None
    store.put_bytes("a", VIDEO_ID, Variant.VIDEO, b"film")
    store.put_bytes("a", VIDEO_ID, Variant.THUMBNAIL, b"")
    store.put_bytes("b", VIDEO_ID, Variant.VIDEO, b"another tenant")
    assert store.size("a", VIDEO_ID, Variant.VIDEO) == 4
    assert store.size("a", VIDEO_ID, Variant.THUMBNAIL) == 0
    store.put_bytes("a", VIDEO_ID, Variant.VIDEO, b"second film")
    file = store.open("a", VIDEO_ID, Variant.VIDEO)
    assert file is not None
    with file:
        file.seek(7)
        assert file.read() == b"film"
    store.delete("a", VIDEO_ID)
    store.delete("a", VIDEO_ID)
    assert store.size("a", VIDEO_ID, Variant.VIDEO) is None
    assert store.size("b", VIDEO_ID, Variant.VIDEO) == 14


@pytest.mark.parametrize(
    ("tenant", "video_id"),
    [
        ("a", "../../etc/passwd"),
        ("a", ""),
        ("a", "."),
        ("a", VIDEO_ID + "/.."),
        ("a", VIDEO_ID + "\n"),
        ("a", "video_" + "\u0663" * 32),
        ("..", VIDEO_ID),
        ("", VIDEO_ID),
        ("a/b", VIDEO_ID),
    ],
)
def test_no_path_but_our_own(store: ArtifactStore, tenant: str, video_id: str) -> None:
    with pytest.raises(ValueError, match="made by the server"):
        store.put_bytes(tenant, video_id, Variant.VIDEO, b"x")
    with pytest.raises(ValueError, match="made by the server"):
        store.delete(tenant, video_id)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: pathlib.Path) -> None:
    store = ArtifactStore(str(tmp_path))
    store.put_bytes("a", VIDEO_ID, Variant.VIDEO, b"film")
    with pytest.raises(TypeError):
        store.put_bytes("a", VIDEO_ID, Variant.VIDEO, 5)  # type: ignore[arg-type]
    assert store.size("a", VIDEO_ID, Variant.VIDEO) == 4
    assert [path.name for path in (tmp_path / "a" / VIDEO_ID).iterdir()] == ["video.mp4"]


def test_a_store_crosses_processes() -> None:
    store = ArtifactStore("memory://x")
    assert pickle.loads(pickle.dumps(store)) == store


def test_what_was_written_is_let_go(tmp_path: pathlib.Path) -> None:
    store = ArtifactStore(str(tmp_path))
    for _ in range(3):
        store.put_bytes("a", VIDEO_ID, Variant.VIDEO, b"film")
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, LocalFileOpener)]
    assert not [file for file in kept if str(tmp_path) in file.path]
