"""The diff extractor always answers: its engines, its deadline, and every fault of an endpoint, over real HTTP."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from actors.diff_extractor import (
    MAX_FAILURES,
    PAUSE_S,
    DiffEngineName,
    DiffExtractorConfig,
    DiffExtractorReplica,
    DiffResult,
    FallbackReason,
)
from actors.engines.llm_diff import EXAMPLES, MAX_RESPONSE_BYTES, answer_schema
from reprise.chorus.prompt_diff import MAX_WORDS, TokenDiff, align_diff, parse_diff
from tests.fakes.chat_server import ChatServer, chat_server, unused_port

SOURCE = "a large red circle moves right over a blue background"
TARGET = "a large green circle moves right over a blue background"
GOOD = {"added": ["green"], "removed": ["red"], "object": "red circle"}


def answer_well(_request: dict[str, Any]) -> str:
    return json.dumps(GOOD)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server(answer_well) as running:
        yield running


async def extract(base_url: str, *, deadline_s: float = 30.0) -> DiffResult:
    """Ask a new replica once; it must have counted what it reports."""
    config = DiffExtractorConfig(
        engine=DiffEngineName.LLM, base_url=base_url, model="small-model", deadline_s=deadline_s
    )
    replica = DiffExtractorReplica(config)
    result = await replica.extract(SOURCE, TARGET)
    await replica.stop()
    assert dict(replica.fallback_counts) == ({result.fallback_reason: 1} if result.fallback_reason else {})
    return result


def assert_aligner_answered(result: DiffResult, reason: FallbackReason) -> None:
    assert (result.engine, result.fallback_reason) == (DiffEngineName.ALIGNER, reason)
    assert result.diff == align_diff(SOURCE, TARGET)


async def test_the_aligner_needs_no_endpoint() -> None:
    replica = DiffExtractorReplica(DiffExtractorConfig())
    result = await replica.extract(SOURCE, TARGET)
    await replica.stop()
    assert (result.engine, result.fallback_reason) == (DiffEngineName.ALIGNER, None)
    assert result.diff == align_diff(SOURCE, TARGET)
    assert result.milliseconds > 0
    assert not replica.fallback_counts


async def test_a_good_answer_is_the_models(server: ChatServer) -> None:
    result = await extract(server.base_url)
    assert (result.engine, result.fallback_reason) == (DiffEngineName.LLM, None)
    assert result.diff == parse_diff(json.dumps(GOOD), source=SOURCE, target=TARGET)
    assert result.diff.object_phrase is not None
    assert result.diff.object_phrase.text == "red circle"  # the model's, where the aligner says `large red circle`


async def test_the_request_asks_for_structured_output(server: ChatServer) -> None:
    await extract(server.base_url + "/")
    (request,) = server.requests
    assert request["model"] == "small-model"
    assert json.loads(request["messages"][-1]["content"]) == {"source": SOURCE, "target": TARGET}
    assert request["response_format"]["type"] == "json_schema"
    assert request["response_format"]["json_schema"]["schema"] == answer_schema(SOURCE, TARGET)


def test_the_examples_in_the_request_fit_their_own_prompts() -> None:
    for source, target, removed, added, thing in EXAMPLES:
        answer = json.dumps({"removed": removed, "added": added, "object": thing})
        said, aligned = parse_diff(answer, source=source, target=target), align_diff(source, target)
        assert (said.added, said.removed, said.object_phrase) == (
            aligned.added,
            aligned.removed,
            aligned.object_phrase,
        )


def test_the_schema_admits_only_words_of_the_prompts() -> None:
    schema: Any = answer_schema("a black cat on a sofa", "a black dog on a sofa")
    assert schema["properties"]["removed"]["items"]["enum"] == ["black", "cat", "sofa"]
    assert schema["properties"]["added"]["items"]["enum"] == ["black", "dog", "sofa"]
    assert schema["properties"]["object"]["enum"] == ["black cat", "sofa", None]
    assert sorted(schema["required"]) == ["added", "object", "removed"]


def test_the_schema_of_prompts_without_words_is_one() -> None:
    schema: Any = answer_schema("...", "")
    assert schema["properties"]["added"] == {"type": "array", "items": {"type": "string"}, "maxItems": 0}
    assert schema["properties"]["object"]["enum"] == [None]


async def test_a_slow_endpoint_is_not_waited_for(server: ChatServer) -> None:
    server.hold()
    assert_aligner_answered(await extract(server.base_url, deadline_s=0.05), FallbackReason.DEADLINE)


async def test_a_dead_endpoint() -> None:
    result = await extract(f"http://127.0.0.1:{unused_port()}/v1")
    assert_aligner_answered(result, FallbackReason.UNREACHABLE)


async def test_an_endpoint_that_hangs_up(server: ChatServer) -> None:
    server.hangs_up = True
    assert_aligner_answered(await extract(server.base_url), FallbackReason.UNREACHABLE)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 302])
async def test_an_error_status(server: ChatServer, status: int) -> None:
    server.status = status
    assert_aligner_answered(await extract(server.base_url), FallbackReason.REFUSED)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b"\xff\xfe\x00",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": null}}]}',
        b"[" * 100_000,
        b" " * (MAX_RESPONSE_BYTES + 1),
    ],
    ids=["empty", "html", "bytes", "list", "no choice", "no text", "deep", "huge"],
)
async def test_a_response_that_is_no_completion(server: ChatServer, body: bytes) -> None:
    server.body = body
    assert_aligner_answered(await extract(server.base_url), FallbackReason.UNREADABLE)


@pytest.mark.parametrize(
    "text",
    [
        "The colour changes from red to green.",
        '{"added": ["green"], "removed": ["red"]}',
        '{"added": "green", "removed": "red", "object": null}',
        '{"added": [1], "removed": [], "object": null}',
        '{"added": ["green"], "removed": ["red"], "object": "red cir',
    ],
)
async def test_rubbish_from_the_model(server: ChatServer, text: str) -> None:
    server.answer = lambda _: text
    assert_aligner_answered(await extract(server.base_url), FallbackReason.UNREADABLE)


@pytest.mark.parametrize(
    "changed", [{"added": ["emerald"]}, {"removed": ["green"]}, {"object": "blue circle"}, {"added": ["gree"]}]
)
async def test_words_that_are_not_in_the_prompts(server: ChatServer, changed: dict[str, object]) -> None:
    server.answer = lambda _: json.dumps(GOOD | changed)
    assert_aligner_answered(await extract(server.base_url), FallbackReason.UNKNOWN_WORD)


async def test_very_long_prompts_are_not_asked_about(server: ChatServer) -> None:
    config = DiffExtractorConfig(engine=DiffEngineName.LLM, base_url=server.base_url, model="m", deadline_s=30.0)
    replica = DiffExtractorReplica(config)
    result = await replica.extract(SOURCE, "fox " * (MAX_WORDS + 1))
    await replica.stop()
    assert (result.engine, result.fallback_reason) == (DiffEngineName.ALIGNER, FallbackReason.PROMPT_TOO_LONG)
    assert not server.requests


async def test_an_error_nobody_foresaw() -> None:
    class BrokenEngine:
        async def diff(self, source: str, target: str) -> TokenDiff:
            raise KeyError(source, target)

        async def close(self) -> None: ...

    replica = DiffExtractorReplica(DiffExtractorConfig(), BrokenEngine())
    assert_aligner_answered(await replica.extract(SOURCE, TARGET), FallbackReason.ENGINE_FAILED)


async def test_faults_are_counted_and_do_not_last(server: ChatServer) -> None:
    config = DiffExtractorConfig(engine=DiffEngineName.LLM, base_url=server.base_url, model="m", deadline_s=30.0)
    replica = DiffExtractorReplica(config)
    for status, reason in ((500, FallbackReason.REFUSED), (500, FallbackReason.REFUSED), (200, None)):
        server.status = status
        assert (await replica.extract(SOURCE, TARGET)).fallback_reason is reason
    await replica.stop()
    assert dict(replica.fallback_counts) == {FallbackReason.REFUSED: 2}


class ClockedReplica:
    """A replica of the `llm` engine whose time stands still until it is told."""

    def __init__(self, server: ChatServer) -> None:
        self.now = 100.0
        config = DiffExtractorConfig(engine=DiffEngineName.LLM, base_url=server.base_url, model="m", deadline_s=30.0)
        self.replica = DiffExtractorReplica(config, clock=lambda: self.now)

    async def ask(self, target: str = TARGET) -> FallbackReason | None:
        """Give why the aligner answered."""
        return (await self.replica.extract(SOURCE, target)).fallback_reason


async def test_an_engine_that_keeps_failing_is_left_alone_and_tried_again(server: ChatServer) -> None:
    clocked = ClockedReplica(server)
    server.status = 500
    assert [await clocked.ask() for _ in range(MAX_FAILURES)] == [FallbackReason.REFUSED] * MAX_FAILURES
    server.status = 200
    clocked.now += PAUSE_S - 0.1
    result = await clocked.replica.extract(SOURCE, TARGET)
    assert_aligner_answered(result, FallbackReason.CIRCUIT_OPEN)
    assert len(server.requests) == MAX_FAILURES
    clocked.now += 0.1
    assert await clocked.ask() is None
    assert await clocked.ask() is None
    await clocked.replica.stop()
    assert len(server.requests) == MAX_FAILURES + 2


async def test_a_trial_that_fails_begins_another_pause(server: ChatServer) -> None:
    clocked = ClockedReplica(server)
    server.status = 500
    for _ in range(MAX_FAILURES):
        await clocked.ask()
    clocked.now += PAUSE_S
    assert await clocked.ask() is FallbackReason.REFUSED
    assert await clocked.ask() is FallbackReason.CIRCUIT_OPEN
    await clocked.replica.stop()
    assert len(server.requests) == MAX_FAILURES + 1


async def test_prompts_that_are_not_asked_about_are_no_fault_of_the_engine(server: ChatServer) -> None:
    clocked = ClockedReplica(server)
    for _ in range(MAX_FAILURES):
        assert await clocked.ask("fox " * (MAX_WORDS + 1)) is FallbackReason.PROMPT_TOO_LONG
    assert await clocked.ask() is None
    await clocked.replica.stop()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"engine": DiffEngineName.LLM, "model": "m"}, "base_url=''"),
        ({"engine": DiffEngineName.LLM, "base_url": "http://h/v1"}, "model=''"),
        ({"base_url": "http://h/v1"}, "engine=aligner"),
        ({"model": "m"}, "model='m'"),
        ({"deadline_s": 0.0}, "got 0.0"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        DiffExtractorConfig(**fields)
