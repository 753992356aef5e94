"""The playground in a real browser, each tab used once; its screenshots are kept for a look.

Needs Debian's chromium and the playwright package, and is left out where one is missing. Screenshots go to the folder
that REPRISE_SCREENSHOTS names, else to a temporary one.
"""

import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.serve.conftest import Server, Studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.serve,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]

SHAPE = "a small red circle moves left over a striped gray background"
EDITED = "a small red square moves left over a striped gray background"
PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    named = os.environ.get("REPRISE_SCREENSHOTS")
    folder = pathlib.Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def page(browser: "Browser", server: Server) -> Iterator["Page"]:
    # Waiting for a condition is done by evaluating it in the page, which its policy forbids.
    page = browser.new_page(viewport={"width": 1100, "height": 900}, bypass_csp=True)
    page.set_default_timeout(PATIENCE_MS)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if is_fault(message) else None)
    page.goto(server.url)
    yield page
    page.close()
    assert faults == []


def is_fault(message: "ConsoleMessage") -> bool:
    """Tell an error of the page; a request that is refused is one of its user."""
    return message.type == "error" and "status of 400" not in message.text


def is_playing(page: "Page", video: str) -> None:
    page.wait_for_function(f"document.getElementById('{video}').currentTime > 0.3", timeout=PATIENCE_MS)


def test_a_clip_is_made_and_what_it_reused_is_shown(
    page: "Page", screenshots: pathlib.Path, server: Server, studio: Studio
) -> None:
    for prompt in (SHAPE, EDITED):
        page.fill("#clip-form [name=prompt]", prompt)
        page.fill("#clip-form [name=steps]", "8")
        page.fill("#clip-form [name=seed]", "5")
        page.click("#clip-form [type=submit]")
        page.wait_for_function("document.getElementById('clip-facts').textContent.includes('Denoising')")
        is_playing(page, "clip-video")
        if prompt is SHAPE:  # masks of a source are made after its caller has it
            (video,) = [video for video in studio.client.videos.list(limit=100) if video.prompt == SHAPE]
            while server.mask(video.id, "small red circle") is None:
                page.wait_for_timeout(50)
    facts = page.inner_text("#clip-facts")
    assert "yes" in facts
    assert re.search(r"K1\s+[1-9]", facts)
    is_playing(page, "source-video")
    assert page.is_visible("#source-figure")
    page.screenshot(path=screenshots / "clips.png", full_page=True)


def test_a_clip_that_cannot_be_made_says_why(page: "Page") -> None:
    page.fill("#clip-form [name=steps]", "8")
    page.fill("#clip-form [name=prompt]", "a" * 5000)
    page.click("#clip-form [type=submit]")
    page.wait_for_function("document.getElementById('clip-fault').textContent.includes('prompt')")


def test_a_long_video_plays_while_it_is_made(page: "Page", screenshots: pathlib.Path) -> None:
    page.click("#tab-long")
    page.click("#long-form [type=submit]")
    is_playing(page, "long-video")
    page.wait_for_function("document.getElementById('long-facts').textContent.includes('renderer')")
    assert page.inner_text("#long-state") == "completed, 100 %"
    page.screenshot(path=screenshots / "long.png", full_page=True)


def test_a_live_stream_changes_while_it_plays(page: "Page", screenshots: pathlib.Path) -> None:
    page.click("#tab-live")
    page.click("#live-send")
    is_playing(page, "live-video")
    page.fill("#live-form [name=prompt]", "a small blue circle moves left over a black background")
    page.click("#live-send")
    page.wait_for_function(
        "/\\d+ ms/.test(document.getElementById('live-changes').tBodies[0].rows[0].textContent)"
        " && document.getElementById('live-changes').tBodies[0].rows.length === 2"
    )
    page.wait_for_timeout(2500)
    page.screenshot(path=screenshots / "live.png", full_page=True)
    page.click("#live-stop")
    page.wait_for_function("document.getElementById('live-state').textContent.includes('stopped')")


def test_the_cache_is_browsed_and_purged(page: "Page", screenshots: pathlib.Path, studio: Studio) -> None:
    video = studio.make("a large white star rests over a purple background")
    page.click("#tab-cache")
    page.wait_for_selector("#cache-entries li")
    entry = page.locator("#cache-entries li", has_text="a large white star rests").first
    page.wait_for_function("document.querySelector('#cache-entries img').naturalWidth > 0")
    page.screenshot(path=screenshots / "cache.png", full_page=True)
    entry.get_by_role("button", name="Purge").click()
    entry.wait_for(state="detached")
    assert video.id not in [other.id for other in studio.client.videos.list(limit=100).data]


def test_keyboard_phone_and_dark_under_the_page_s_own_policy(
    browser: "Browser", server: Server, screenshots: pathlib.Path
) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.goto(server.url)
    page.focus("#tab-clips")
    for tab in ("long", "live", "cache", "clips"):
        page.keyboard.press("ArrowRight")
        assert page.is_visible(f"#{tab}")
        assert page.evaluate("document.activeElement.id") == f"tab-{tab}"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing hangs over the edge"
        page.screenshot(path=screenshots / f"phone-{tab}.png", full_page=True)
    page.close()
