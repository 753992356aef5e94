"""An application that cannot start says which part is at fault and why, and waits for a better configuration."""

import pathlib
import threading
import time

import httpx
import pytest
from ray import serve

from actors.device_memory import free_bytes
from deployments.app import build_app
from deployments.config import AppConfig
from reprise.wan.memory import GIB
from reprise.wan.presets import WEIGHTS
from tests.serve.conftest import Server

pytestmark = [
    pytest.mark.serve,
    pytest.mark.timeout(600),
    pytest.mark.skipif(free_bytes("cpu") > 60 * GIB, reason="here it would fit"),
]

NAME = "too-large"


def test_a_model_that_does_not_fit_is_named_in_health(server: Server, tmp_path: pathlib.Path) -> None:
    config = AppConfig.model_validate(
        {
            "preset": "wan2.1-t2v-14b",
            "model_path": str(tmp_path / "weights-that-nobody-reads"),
            "data_dir": str(tmp_path),
            "embedder": {"model": f"local-dir:{WEIGHTS / 'tiny_clip'}"},
        }
    )
    errors: list[Exception] = []

    def deploy() -> None:
        try:
            serve.run(build_app(config), name=NAME, route_prefix=f"/{NAME}")
        except RuntimeError as error:
            errors.append(error)

    deploying = threading.Thread(target=deploy)
    deploying.start()
    reason = ""
    while "needs 60.8 GiB of cpu" not in reason:
        time.sleep(0.5)
        answer = httpx.get(f"{server.url}/{NAME}/health", timeout=120)
        if answer.status_code == 503:
            reason = str(answer.json()["reason"])
    assert reason.startswith("Denoiser has no running replica: ")
    deploying.join()
    assert errors, "the start gives up rather than go round in circles"
    before = serve.status().applications[NAME].deployments["Denoiser"]
    assert before.status == "DEPLOY_FAILED"
    assert not before.replica_states.get("STARTING")
    assert httpx.get(f"{server.url}/health", timeout=10).status_code == 200, "the application beside it serves"
    serve.delete(NAME)
