"""The LLM diff engine against a real vLLM server on the CPU: `make test-vllm` installs it and runs this.

The server runs in another environment, named by REPRISE_VLLM_PYTHON and REPRISE_VLLM_MODEL. A model of 135 million
parameters names the wrong words often enough; what is tested is that real structured output passes our checks.
"""

import asyncio
import os
import pathlib
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest

from actors.diff_extractor import DiffEngineName, DiffExtractorConfig, DiffExtractorReplica, FallbackReason
from tests.fakes.chat_server import unused_port

PYTHON = os.environ.get("REPRISE_VLLM_PYTHON", "")
MODEL_FOLDER = os.environ.get("REPRISE_VLLM_MODEL", "")
MODEL = "smollm2-135m"
START_LIMIT_S = 1_200
PAIRS = (
    ("a spotted dog runs in a park", "an old horse runs in a park"),
    (
        "a large red circle moves right over a blue background",
        "a large green circle moves right over a blue background",
    ),
    ("two boats on a lake at night", "three boats on a lake at noon"),
    ("a cat sleeps on a sofa", "a cat sleeps on a sofa"),
    ("a man in a black coat, 4k, cinematic", "a woman in a black coat, 4k, cinematic"),
)

pytestmark = [
    pytest.mark.skipif(not (PYTHON and MODEL_FOLDER), reason="needs a vLLM environment: make test-vllm"),
    pytest.mark.timeout(3_600),
]


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the server, which takes minutes on a CPU."""
    port, log = unused_port(), tmp_path_factory.mktemp("vllm") / "log"
    command = [
        PYTHON,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        MODEL_FOLDER,
        "--served-model-name",
        MODEL,
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "2048"]
    settings = {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
        "PATH": f"{pathlib.Path(PYTHON).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--enforce-eager"], env=os.environ | settings, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until_healthy(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_until_healthy(server: subprocess.Popen[bytes], url: str, log: pathlib.Path) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit and server.poll() is None:
        try:
            if httpx.get(url, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(1)
    pytest.fail(f"vLLM did not start (exit code {server.poll()}); end of its log:\n{log.read_text()[-4_000:]}")


def replica(base_url: str, *, model: str = MODEL, deadline_s: float = 600.0) -> DiffExtractorReplica:
    config = DiffExtractorConfig(engine=DiffEngineName.LLM, base_url=base_url, model=model, deadline_s=deadline_s)
    return DiffExtractorReplica(config)


async def test_structured_output_passes_the_checks(base_url: str) -> None:
    extractor = replica(base_url)
    results = [await extractor.extract(source, target) for source, target in PAIRS]
    await extractor.stop()
    assert [(result.engine, result.fallback_reason) for result in results] == [(DiffEngineName.LLM, None)] * len(PAIRS)
    for (source, target), result in zip(PAIRS, results, strict=True):
        print(
            f"{source} -> {target}: removed {[word.text for word in result.diff.removed]}, "
            f"added {[word.text for word in result.diff.added]}, object {result.diff.object_phrase}, "
            f"{result.milliseconds:.0f} ms"
        )
        assert all(word.text == target[word.start : word.stop] for word in result.diff.added)
        assert all(word.text == source[word.start : word.stop] for word in result.diff.removed)


async def test_several_at_once(base_url: str) -> None:
    extractor = replica(base_url)
    results = await asyncio.gather(*(extractor.extract(source, target) for source, target in PAIRS))
    await extractor.stop()
    assert {result.engine for result in results} == {DiffEngineName.LLM}


async def test_what_is_too_slow_is_cancelled_and_the_next_is_answered(base_url: str) -> None:
    hasty, patient = replica(base_url, deadline_s=0.001), replica(base_url)
    late = await hasty.extract(*PAIRS[0])
    answered = await patient.extract(*PAIRS[0])
    await hasty.stop()
    await patient.stop()
    assert (late.engine, late.fallback_reason) == (DiffEngineName.ALIGNER, FallbackReason.DEADLINE)
    assert answered.engine is DiffEngineName.LLM


async def test_a_model_that_is_not_served(base_url: str) -> None:
    extractor = replica(base_url, model="another")
    result = await extractor.extract(*PAIRS[0])
    await extractor.stop()
    assert result.fallback_reason is FallbackReason.REFUSED
