"""A table of bad requests: each is a 400 that names its field, before any work, and the next request works."""

import json
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployments.api.app import create_api
from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.api.services import ApiSettings
from tests.unit.api.conftest import Forgotten, tiny_limits

JSON = {"content-type": "application/json"}
BOUNDARY = {"content-type": "multipart/form-data; boundary=x"}

BAD_FIELDS: list[tuple[str, Any]] = [
    ("prompt", ""),
    ("prompt", "   "),
    ("prompt", "\n\t\r"),
    ("prompt", "\u200b\u200c\u200d\u2060\ufeff"),
    ("prompt", " \u00a0\u3000\u2003 "),
    ("prompt", "\u3164\u2800\ufe0f"),
    ("prompt", "\u202e\u0000"),
    ("prompt", "a\u0000b"),
    ("prompt", "x" * 501),
    ("prompt", None),
    ("prompt", 5),
    ("prompt", True),
    ("prompt", ["a"]),
    ("prompt", {"text": "a"}),
    ("model", "sora-2"),
    ("model", 1),
    ("seconds", "8"),
    ("seconds", 12),
    ("seconds", 0),
    ("seconds", -4),
    ("seconds", 4.0),
    ("seconds", True),
    ("seconds", "four"),
    ("seconds", " 4"),
    ("seconds", "4.0"),
    ("seconds", "\u0664"),
    ("seconds", "9" * 400),
    ("seconds", 10**4299),
    ("size", "100000x100000"),
    ("size", "64"),
    ("size", "720X1280"),
    ("size", "719x1279"),
    ("size", ""),
    ("size", [720, 1280]),
    ("input_reference", "http://169.254.169.254/latest"),
    ("input_reference", {"image_url": "file:///etc/passwd"}),
    ("seed", 2**63),
    ("seed", -1),
    ("seed", 10**200),
    ("seed", 1.5),
    ("seed", True),
    ("seed", "7"),
    ("num_inference_steps", 0),
    ("num_inference_steps", -1),
    ("num_inference_steps", 101),
    ("num_inference_steps", 2**70),
    ("guidance_scale", float("nan")),
    ("guidance_scale", float("inf")),
    ("guidance_scale", float("-inf")),
    ("guidance_scale", 1e308),
    ("guidance_scale", -0.1),
    ("guidance_scale", "high"),
    ("negative_prompt", "x" * 501),
    ("negative_prompt", ["blur"]),
    ("num_frames", 0),
    ("num_frames", -3),
    ("num_frames", 15),
    ("num_frames", 1),
    ("num_frames", 21),
    ("num_frames", 17.0),
    ("num_frames", 10**4299),
    ("fps", 0),
    ("fps", -1),
    ("fps", 1000),
    ("reuse", "yes"),
    ("reuse", True),
    ("n", 0),
    ("width", 100_000),
    ("output_path", "/etc/cron.d/x"),
    ("extra", {"seed": 2**64, "deep": [[[{"a": None}]]]}),
    ("promptt", "a"),
    ("\u00e9\u4e2d", 1),
    ("input_reference[image_url]", "x"),
]

BAD_BODIES: list[tuple[str, dict[str, str], bytes]] = [
    ("empty", JSON, b""),
    ("cut off", JSON, b'{"prompt": "a"'),
    ("no JSON", JSON, b"prompt=a"),
    ("a list", JSON, b'["a"]'),
    ("a string", JSON, b'"a"'),
    ("null", JSON, b"null"),
    ("not UTF-8", JSON, b'{"prompt": "\xff\xfe"}'),
    ("lone surrogate", JSON, b'{"prompt": "\\ud800"}'),
    ("lone surrogate in a key", JSON, b'{"prompt": "a", "\\udfff": 1}'),
    ("number beyond reading", JSON, b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}"),
    ("deep nesting", JSON, b'{"prompt": "a", "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
    ("too large", JSON, b'{"prompt": "' + b"a" * 100_000 + b'"}'),
    ("text", {"content-type": "text/plain"}, b"a"),
    ("urlencoded", {"content-type": "application/x-www-form-urlencoded"}, b"prompt=a"),
    ("no content type", {}, b'{"prompt": "a"}'),
    ("junk content type", {"content-type": "\x7f;;;="}, b'{"prompt": "a"}'),
    ("no boundary", {"content-type": "multipart/form-data"}, b"--x--"),
    ("empty form", BOUNDARY, b""),
    ("junk form", BOUNDARY, b"\x00\xff junk"),
    ("cut off form", BOUNDARY, b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na'),
    ("nameless part", BOUNDARY, b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--\r\n"),
    ("many parts", BOUNDARY, b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\na\r\n' * 500 + b"--x--\r\n"),
    (
        "form in Latin-1",
        BOUNDARY,
        b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\ncaf\xe9\r\n--x--\r\n',
    ),
]


def check_shape(answer: httpx2.Response, *, status: int, param: str | None) -> None:
    """Check that an answer is an error in the shape of the API and shows nothing of the server."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"]
    assert "Traceback" not in answer.text
    assert len(error["message"]) < 700


async def check_works(http: httpx2.AsyncClient, jobs: JobStore) -> None:
    """Check that a good request is served and that nothing else has been stored."""
    good = await http.post("/v1/videos", json={"prompt": "a"})
    assert good.status_code == 200
    page = await jobs.page("default", after=None, limit=10, order="desc")
    assert [job.id for job in page.jobs] == [good.json()["id"]]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS, ids=[f"{f}-{str(v)[:20]!a}" for f, v in BAD_FIELDS])
async def test_a_bad_field_is_named(http: httpx2.AsyncClient, jobs: JobStore, field: str, value: Any) -> None:
    answer = await http.post("/v1/videos", content=json.dumps({"prompt": "a", field: value}), headers=JSON)
    check_shape(answer, status=400, param=field)
    await check_works(http, jobs)


@pytest.mark.parametrize(("headers", "body"), [bad[1:] for bad in BAD_BODIES], ids=[bad[0] for bad in BAD_BODIES])
async def test_a_bad_body_is_refused(
    http: httpx2.AsyncClient, jobs: JobStore, headers: dict[str, str], body: bytes
) -> None:
    for path in ("/v1/videos", "/v1/videos/video_0/remix"):
        answer = await http.post(path, content=body, headers=headers)
        assert answer.status_code == 400, answer.text
        check_shape(answer, status=400, param=answer.json()["error"]["param"])
    await check_works(http, jobs)


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ([("prompt", "a"), ("seed", "x")], "seed"),
        ([("prompt", "a"), ("seed", "1e3")], "seed"),
        ([("prompt", "a"), ("guidance_scale", "nan")], "guidance_scale"),
        ([("prompt", "a"), ("guidance_scale", "1e999")], "guidance_scale"),
        ([("prompt", "a"), ("num_frames", "")], "num_frames"),
        ([("prompt", "a"), ("num_frames", "15")], "num_frames"),
        ([("prompt", "a"), ("seconds", "8")], "seconds"),
        ([("prompt", "a"), ("prompt", "a")], "prompt"),
        ([("prompt[a]", "a")], "prompt"),
        ([("prompt[]", "a"), ("prompt[]", "b")], "prompt"),
        ([("prompt", "a"), ("prompt[x]", "b")], "prompt"),
        ([("prompt", "a"), ("input_reference[image_url]", "x")], "input_reference"),
        ([("prompt", "a"), ("input_reference[", "x")], "input_reference"),
        ([("prompt", "a"), ("", "x")], ""),
        ([("prompt", "\u200b")], "prompt"),
        ([("seed", "1")], "prompt"),
    ],
)
async def test_a_bad_form_field_is_named(
    http: httpx2.AsyncClient, jobs: JobStore, form: list[tuple[str, str]], param: str
) -> None:
    parts = "".join(f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in form)
    answer = await http.post("/v1/videos", content=f"{parts}--x--\r\n".encode(), headers=BOUNDARY)
    check_shape(answer, status=400, param=param)
    await check_works(http, jobs)


async def test_a_file_where_text_belongs_is_named(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/v1/videos", files={"prompt": ("a.txt", b"a")})
    check_shape(answer, status=400, param="prompt")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=99999999999999999999", "limit"),
        ("order=up", "order"),
        ("after=video_1", "after"),
        ("after=", "after"),
        ("after=../../x", "after"),
    ],
)
async def test_a_bad_list_parameter_is_named(http: httpx2.AsyncClient, query: str, param: str) -> None:
    check_shape(await http.get(f"/v1/videos?{query}"), status=400, param=param)


async def test_messages_say_what_to_change(http: httpx2.AsyncClient) -> None:
    async def message(**fields: object) -> str:
        text: str = (await http.post("/v1/videos", json={"prompt": "a", **fields})).json()["error"]["message"]
        return text

    assert "nearest valid: 13 or 17" in await message(num_frames=15)
    assert "nearest valid: 17" in await message(num_frames=400)
    assert "nearest valid: 5" in await message(num_frames=-3)
    assert "one of 1, 2, 3, 4 at 4 frames per second" in await message(seconds=8)
    assert "give num_frames instead" in await message(seconds=1, fps=30)
    assert "1024x1792, 1280x720, 1792x1024, 720x1280" in await message(size="64x64")
    assert "is 17 frames, but num_frames is 9" in await message(seconds=4, num_frames=9)
    assert "known fields: prompt, model, seconds" in await message(widht=3)


async def test_a_body_that_hides_its_length_is_cut_off(http: httpx2.AsyncClient) -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        for _ in range(10_000):
            sent += 1
            yield b"x" * 10_000

    answer = await http.post("/v1/videos", content=endless(), headers=JSON)
    check_shape(answer, status=400, param=None)
    assert answer.json()["error"]["code"] == "body_too_large"
    assert sent < 20


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELD = st.sampled_from(["prompt", "model", "seconds", "size", "seed", "num_inference_steps", "guidance_scale", "fps"])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(body=st.dictionaries(FIELD | st.text(max_size=8), JUNK, max_size=5))
async def test_no_body_at_all_is_a_server_error(http: httpx2.AsyncClient, body: dict[str, Any]) -> None:
    answer = await http.post("/v1/videos", content=json.dumps(body), headers=JSON)
    if answer.status_code != 200:
        check_shape(answer, status=400, param=answer.json()["error"]["param"])


async def test_long_input_is_not_echoed_whole(jobs: JobStore, artifacts: ArtifactStore) -> None:
    wide = create_api(ApiSettings(limits=tiny_limits()), jobs, artifacts, forget_source=Forgotten())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=wide), base_url="http://x") as http:
        for fields in ({"size": "9" * 100_000}, {"model": "m" * 100_000}, {"k" * 100_000: 1}):
            answer = await http.post("/v1/videos", json={"prompt": "a", **fields})
            assert answer.status_code == 400
            assert len(answer.text) < 1000


@pytest.mark.parametrize(
    ("reuse", "param"),
    [
        ({"mode": "maximum"}, "reuse.mode"),
        ({"tau": 0.1}, "reuse.tau"),
        ({"tau": 1.1}, "reuse.tau"),
        ({"tau": "high"}, "reuse.tau"),
        ({"mode": "off", "tau": 0.9}, "reuse.tau"),
        ({"mode": "exact", "tau": 0.9}, "reuse.tau"),
        ({"mode": "off", "source": "video_1"}, "reuse.source"),
        ({"source": "video_1"}, "reuse.source"),
        ({"source": "../../etc"}, "reuse.source"),
        ({"source": 7}, "reuse.source"),
        ({"modus": "off"}, "reuse.modus"),
        ([], "reuse"),
    ],
)
async def test_a_bad_part_of_reuse_is_named(http: httpx2.AsyncClient, reuse: object, param: str) -> None:
    answer = await http.post("/v1/videos", json={"prompt": "a", "reuse": reuse})
    check_shape(answer, status=400, param=param)
