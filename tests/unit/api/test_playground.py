"""The page's files and the masks it draws; what it does in a browser is tested in tests/serve."""

import io
import re

import httpx2
import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image

from deployments.api.app import create_api
from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.api.mask import draw_mask
from deployments.api.playground import FOLDER
from deployments.api.services import ApiSettings
from reprise.chorus.mask_codec import pack_mask
from tests.unit.api.conftest import Forgotten, tiny_limits

MASK = np.random.default_rng(0).random((5, 6, 8)) > 0.5


@pytest.fixture
def app(jobs: JobStore, artifacts: ArtifactStore, forgotten: Forgotten) -> FastAPI:
    async def find_mask(tenant: str, video_id: str, phrase: str) -> bytes | None:
        assert (tenant, bool(video_id)) == ("default", True)
        return pack_mask(MASK) if phrase == "a red circle" else None

    settings = ApiSettings(limits=tiny_limits())
    return create_api(settings, jobs, artifacts, forget_source=forgotten, find_mask=find_mask)


async def test_the_page_and_everything_it_names_is_served_from_here(http: httpx2.AsyncClient) -> None:
    page = await http.get("/")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="(playground/[^"]+)"', page.text):
        assert (await http.get(f"/{name}")).status_code == 200
    for script in FOLDER.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', script.read_text()):
            assert (FOLDER / name).is_file()
    every = "".join(path.read_text() for path in FOLDER.iterdir())
    assert not re.search(r"https?://", every), "nothing is loaded from elsewhere"


async def test_a_file_beside_the_page_is_not_served(http: httpx2.AsyncClient) -> None:
    for path in ("/playground/../config.py", "/playground/%2e%2e/config.py", "/playground/"):
        assert (await http.get(path)).status_code == 404


async def test_a_mask_comes_as_one_picture(http: httpx2.AsyncClient) -> None:
    video = (await http.post("/v1/videos", json={"prompt": "a", "num_frames": 5})).json()
    answer = await http.get(f"/v1/videos/{video['id']}/mask", params={"phrase": "a red circle"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert answer.headers["x-mask-frames"] == "5"
    picture = np.asarray(Image.open(io.BytesIO(answer.content)))
    assert np.array_equal(picture[..., 1].reshape(MASK.shape) == 255, MASK)
    missing = await http.get(f"/v1/videos/{video['id']}/mask", params={"phrase": "a dog"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "mask_not_found")
    unknown = await http.get("/v1/videos/video_nonsense/mask", params={"phrase": "a dog"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "video_id")


def test_what_is_no_mask_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a mask"):
        draw_mask(b"junk")
