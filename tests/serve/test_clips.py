"""The main job over real HTTP with the bundled model: create, reuse, content, delete, remix, bad input."""

import io
import time

import av
import httpx
import openai
import pytest
from PIL import Image

from tests.serve.conftest import FPS, FRAMES, STEPS, Server, Studio, facts_of

pytestmark = [pytest.mark.serve, pytest.mark.timeout(600)]

PROMPT = "a large red circle moves right over a blue background"
SIMILAR = "a big red circle moves right over a blue background"
ENDLESS = {"num_inference_steps": 100, "num_frames": 17, "fps": 4}


def test_it_is_ready_and_names_its_model(server: Server, studio: Studio) -> None:
    answer = httpx.get(f"{server.url}/health", timeout=60)
    assert (answer.status_code, answer.json()) == (200, {"alive": True, "ready": True, "reason": None})
    assert [model.id for model in studio.client.models.list()] == ["reprise-tiny"]


def test_a_similar_prompt_starts_from_stored_latents(server: Server, studio: Studio) -> None:
    source = studio.source(PROMPT, seed=1)
    facts = facts_of(source)
    assert (facts["hit"], facts["reason"]) == (False, "empty_cache")
    assert (facts["steps_computed"], facts["steps_skipped"]) == (STEPS, 0)
    hit = studio.make(SIMILAR, seed=2)
    facts = facts_of(hit)
    assert (facts["hit"], facts["source_id"], facts["reason"]) == (True, source.id, None)
    assert 0 < facts["k1"] == facts["k2"] < STEPS
    assert (facts["steps_computed"], facts["steps_skipped"]) == (STEPS - facts["k1"], facts["k1"])
    assert 0.65 <= facts["matching_score"] <= 1.0
    assert [name for name, seconds in facts["seconds"].items() if seconds is None] == ["diff", "region", "first_frame"]
    assert facts["k1"] in server.latent_steps(source.id)
    assert server.latent_steps(hit.id) == set(), "a hit stores nothing"
    assert [video.id for video in studio.client.videos.list(limit=2)] == [hit.id, source.id]


def test_the_same_request_again_gives_its_clip_without_a_step(studio: Studio) -> None:
    source = studio.source(PROMPT, seed=4)
    for mode in ("chorus", "exact"):
        again = studio.make(PROMPT, seed=4, reuse={"mode": mode})
        facts = facts_of(again)
        assert (facts["k1"], facts["steps_computed"], facts["token_share"]) == (STEPS, 0, 0.0)
        one, two = (studio.client.videos.download_content(video.id).read() for video in (source, again))
        assert one == two


def test_a_mode_allows_what_it_says(studio: Studio) -> None:
    source = studio.source(PROMPT, seed=1)
    other = PROMPT.replace("red", "orange")
    exact = facts_of(studio.make(other, seed=2, reuse={"mode": "exact"}))
    assert (exact["hit"], exact["reason"]) == (False, "not_the_same")
    strict = facts_of(studio.make(PROMPT.replace("red", "green"), seed=3, reuse={"tau": 1.0}))
    assert (strict["hit"], strict["reason"]) == (False, "below_threshold")
    named = facts_of(studio.make(other, seed=4, reuse={"source": source.id}))
    assert (named["source_id"], named["words_added"], named["words_removed"]) == (source.id, ["orange"], ["red"])
    nirvana = facts_of(studio.make(SIMILAR, seed=5, reuse="nirvana"))
    assert (nirvana["hit"], nirvana["change_kinds"], nirvana["words_added"]) == (True, [], [])


def test_an_object_that_changes_is_denoised_within_its_mask(server: Server, studio: Studio) -> None:
    source = studio.source(PROMPT, seed=1, num_inference_steps=20)
    while server.mask(source.id, "large red circle") is None:  # made beside the next jobs
        time.sleep(0.05)
    star = PROMPT.replace("circle", "star")
    facts = facts_of(studio.make(star, seed=2, num_inference_steps=20, reuse={"source": source.id}))
    assert (facts["region_phrase"], facts["region_reason"]) == ("large red circle", None)
    assert 0 < facts["k1"] < facts["k2"] < 20
    assert 0 < facts["edit_share"] <= facts["see_share"] < 1
    assert facts["token_share"] < facts["steps_computed"] / 20
    assert facts["seconds"]["region"] > 0
    studio.client.videos.delete(source.id)
    assert server.mask(source.id, "large red circle") is None


def test_the_files_play(studio: Studio) -> None:
    video = studio.make(PROMPT, seed=3)
    content = studio.client.videos.download_content(video.id).read()
    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert (stream.width, stream.height, stream.average_rate) == (720, 1280, FPS)
        assert sum(1 for _ in container.decode(video=0)) == FRAMES
    assert (video.size, video.seconds) == ("720x1280", "1")
    for variant, kind in (("thumbnail", "WEBP"), ("spritesheet", "JPEG")):
        picture = studio.client.videos.download_content(video.id, variant=variant).read()  # type: ignore[arg-type]
        with Image.open(io.BytesIO(picture)) as image:
            assert image.format == kind


def test_nothing_is_reused_of_a_deleted_video(server: Server, studio: Studio) -> None:
    source = studio.source(PROMPT, seed=1)
    assert facts_of(studio.make(SIMILAR, seed=2))["source_id"] == source.id
    assert studio.client.videos.delete(source.id).deleted
    assert server.latent_steps(source.id) == set()
    assert server.files(source.id) == []
    facts = facts_of(studio.make(SIMILAR, seed=3))
    assert (facts["hit"], facts["source_id"], facts["reason"]) == (False, None, "empty_cache")


def test_a_deleted_job_stops_and_the_next_one_runs(server: Server, studio: Studio) -> None:
    running = studio.create(PROMPT, **ENDLESS)
    following = studio.create(PROMPT)
    studio.wait(running.id, lambda video: video.progress > 0)
    studio.client.videos.delete(running.id)
    with pytest.raises(openai.NotFoundError):
        studio.client.videos.retrieve(running.id)
    assert studio.completed(following.id).progress == 100
    assert running.id not in [video.id for video in studio.client.videos.list(limit=10)], "it does not come back"
    assert server.files(running.id) == []
    # One clip is made at a time, so by now the deleted one has ended; at its end it would have stored its latents.
    assert server.latent_steps(following.id)
    assert server.latent_steps(running.id) == set()


def test_a_remix_starts_from_its_video_with_a_seed_of_its_own(studio: Studio) -> None:
    source = studio.source(PROMPT, seed=1, num_inference_steps=20)  # enough that even the least score skips a step
    remix = studio.completed(studio.client.videos.remix(source.id, prompt=PROMPT).id)
    facts = facts_of(remix)
    assert (remix.remixed_from_video_id, facts["hit"], facts["source_id"]) == (source.id, True, source.id)
    assert facts["effective"]["seed"] != 1
    one, two = (studio.client.videos.download_content(video.id).read() for video in (source, remix))
    assert one != two, "the same prompt again is another video"
    other = facts_of(
        studio.completed(studio.client.videos.remix(remix.id, prompt="a white square rests on a purple gradient").id)
    )
    assert (other["hit"], other["source_id"]) == (True, source.id), "whatever the score, and through a hit"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "\u200b "}, "prompt"),
        ({"num_frames": 10}, "num_frames"),
        ({"seed": 2**63}, "seed"),
        ({"guidance_scale": 1e400}, "guidance_scale"),
        ({"steps": 4}, "steps"),
    ],
)
def test_bad_input_is_named_and_the_next_request_works(
    server: Server, studio: Studio, fields: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        studio.create(**{"prompt": PROMPT, **fields})  # type: ignore[arg-type]
    assert raised.value.param == param
    assert studio.create(PROMPT, num_inference_steps=1, reuse="off").status == "queued"
    assert httpx.get(f"{server.url}/v1/videos/nothing", timeout=60).status_code == 404


def test_a_cut_prompt_is_said(studio: Studio) -> None:
    facts = facts_of(studio.make(" ".join([PROMPT] * 6)))
    (warning,) = facts["warnings"]
    assert (warning["code"], warning["used"]) == ("prompt_truncated", 48)
    assert warning["dropped"] > 0
    assert (facts["hit"], facts["reason"]) == (False, "prompt_exceeds_encoder")
