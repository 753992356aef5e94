"""The playground of a server with API keys, in a real browser: it asks for the key, and goes on when it has one."""

import asyncio
import hashlib
import shutil
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest
import uvicorn

from deployments.api.app import create_api
from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.api.services import ApiSettings
from deployments.api.tenants import TenantStore
from deployments.serve import free_port
from tests.unit.api.conftest import Forgotten, tiny_limits

if TYPE_CHECKING:
    from playwright.sync_api import Page

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def server(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Serve the app from a thread; gives its address and a tenant's key."""
    url, port = f"{valkey_url}?db=12", free_port()
    settings = ApiSettings(limits=tiny_limits(), admin_key_sha256=hashlib.sha256(b"admin").hexdigest())
    app = create_api(
        settings,
        JobStore.connect(url),
        ArtifactStore(str(tmp_path_factory.mktemp("artifacts"))),
        forget_source=Forgotten(),
        tenants=TenantStore.connect(url),
    )
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    address = f"http://127.0.0.1:{port}"
    made = httpx.post(f"{address}/admin/tenants/acme/keys", json={}, headers={"authorization": "Bearer admin"})
    yield address, made.json()["key"]
    server.should_exit = True
    thread.join()


def test_the_page_asks_for_a_key_and_uses_it(server: tuple[str, str]) -> None:
    address, key = server
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page: Page = browser.new_page()
        page.goto(address)
        form, health = page.locator("#key-form"), page.locator("#health")
        form.wait_for(state="visible")
        sync_api.expect(health).to_contain_text("no API key")
        form.locator("input").fill("wrong")
        form.locator("button").click()
        sync_api.expect(health).to_contain_text("not valid")
        form.locator("input").fill(key)
        form.locator("button").click()
        sync_api.expect(health).to_have_text("reprise-tiny")
        sync_api.expect(form).to_be_hidden()
        page.reload()
        sync_api.expect(health).to_have_text("reprise-tiny")
        page.locator("#clip-form button[type=submit]").click()
        while not (jobs := httpx.get(f"{address}/v1/videos", headers={"authorization": f"Bearer {key}"}).json())[
            "data"
        ]:
            page.wait_for_timeout(50)
        assert jobs["data"][0]["prompt"].startswith("a small red circle")
        (cookie,) = page.context.cookies()
        assert (cookie["name"], cookie["sameSite"]) == ("reprise_api_key", "Strict")
        browser.close()
