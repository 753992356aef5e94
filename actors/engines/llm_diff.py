"""Differing words by a language model behind an OpenAI-compatible endpoint; the only place that imports httpx for it.

One chat completion a pair with structured output: the schema admits only words that are in the prompts, and
`parse_diff` checks it again, since not every server keeps to a schema. Knows nothing about deadlines or fallbacks.
"""

import json
from typing import Final

from actors.diff_extractor import DiffFault, FallbackReason
from reprise.chorus.phrases import parse_prompt
from reprise.chorus.prompt_diff import MAX_WORDS, TokenDiff, object_phrases, parse_diff

try:
    import httpx
except ImportError as error:
    raise ImportError("the diff engine `llm` needs httpx: pip install 'reprise[llm]'") from error

MAX_RESPONSE_BYTES: Final = 1 << 20
"""A longer response is not read to its end."""
MAX_TOKENS: Final = 256
INSTRUCTION: Final = (
    "Two prompts for a video model are given, source and target. Answer with JSON: `removed`, the words of the source "
    "that the target changes or drops; `added`, the words of the target that are new; `object`, the one thing of the "
    "source that looks different in the target, with its adjectives, or null when only the place, the style or the "
    "movement changes. Leave out words that both prompts use for the same thing, and articles."
)
EXAMPLES: Final[tuple[tuple[str, str, list[str], list[str], str | None], ...]] = (
    ("a brown horse stands in a meadow", "a white horse stands in a meadow", ["brown"], ["white"], "brown horse"),
    ("a sailor repairs an old boat", "a sailor repairs an old engine", ["boat"], ["engine"], "old boat"),
    ("two children build a tent in a garden", "two children build a tent in a desert", ["garden"], ["desert"], None),
    ("a green kite goes up above the hill", "above the hill, a green kite goes up", [], [], None),
)
"""Source, target, removed, added, object."""


class LlmDiffEngine:
    """Ask a chat model which words differ."""

    def __init__(self, base_url: str, model: str) -> None:
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._model = model
        # No time limit here: the shell cancels. No proxy of the environment stands before an endpoint of our own.
        self._client = httpx.AsyncClient(timeout=None, trust_env=False)

    async def diff(self, source: str, target: str) -> TokenDiff:
        """Compare two prompts; raises DiffFault, or ValueError for an answer that does not fit the prompts."""
        num_words = max(len(parse_prompt(prompt).words) for prompt in (source, target))
        if num_words > MAX_WORDS:
            raise DiffFault(FallbackReason.PROMPT_TOO_LONG, f"expected at most {MAX_WORDS} words, got {num_words}")
        return parse_diff(await self._ask(source, target), source=source, target=target)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _ask(self, source: str, target: str) -> str:
        try:
            async with self._client.stream("POST", self._url, json=self._request(source, target)) as response:
                if response.status_code != httpx.codes.OK:
                    raise DiffFault(FallbackReason.REFUSED, f"{self._url} answered {response.status_code}")
                body = b""
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_RESPONSE_BYTES:
                        raise ValueError(f"expected a response of at most {MAX_RESPONSE_BYTES} bytes, got more")
        except httpx.HTTPError as error:
            raise DiffFault(FallbackReason.UNREACHABLE, f"{self._url}: {error!r}") from error
        return _content_of(body)

    def _request(self, source: str, target: str) -> dict[str, object]:
        messages = [{"role": "system", "content": INSTRUCTION}]
        for old, new, removed, added, thing in EXAMPLES:
            answer = json.dumps({"removed": removed, "added": added, "object": thing})
            messages += [{"role": "user", "content": _question(old, new)}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": _question(source, target)})
        schema = {"name": "differing_words", "strict": True, "schema": answer_schema(source, target)}
        return {
            "model": self._model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "response_format": {"type": "json_schema", "json_schema": schema},
        }


def _question(source: str, target: str) -> str:
    return json.dumps({"source": source, "target": target}, ensure_ascii=False)


def answer_schema(source: str, target: str) -> dict[str, object]:
    """Give the JSON schema of an answer: each list may only hold words of its prompt, the object only a noun phrase."""
    removed, added = (_choices([word.text for word in parse_prompt(prompt).words]) for prompt in (source, target))
    things = list(dict.fromkeys(span.text for span in object_phrases(source)))
    return {
        "type": "object",
        "properties": {"removed": removed, "added": added, "object": {"enum": [*things, None]}},
        "required": ["removed", "added", "object"],
        "additionalProperties": False,
    }


def _choices(words: list[str]) -> dict[str, object]:
    """Give the schema of a list of these words; none can be in it when there are none."""
    unique = list(dict.fromkeys(words))
    items: dict[str, object] = {"type": "string", "enum": unique} if unique else {"type": "string"}
    return {"type": "array", "items": items, "maxItems": len(words)}


def _content_of(body: bytes) -> str:
    try:
        content = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise ValueError(f"expected a chat completion, got {body[:80]!r}") from error
    if not isinstance(content, str):
        raise ValueError(f"expected the message's content to be text, got {str(content)[:80]!r}")
    return content
