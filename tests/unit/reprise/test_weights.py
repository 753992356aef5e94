"""The bundled weights: every file has a card with its hash, and all of them stay small."""

import hashlib
import pathlib
import re

import pytest

from reprise.wan.adapter import Role
from reprise.wan.presets import WEIGHTS

FILES = sorted(WEIGHTS.rglob("*.safetensors"))


def test_there_are_weights_of_every_part() -> None:
    folders = {str(path.parent.relative_to(WEIGHTS)) for path in FILES}
    tiny = {f"tiny/{part}" for part in ("text_encoder", "transformer", "vae")}
    long = {"tiny_long/transformer", *(f"tiny_long/roles/{role}" for role in Role)}
    assert folders == tiny | long | {"tiny_4step/transformer", "tiny_live/transformer", "tiny_clip", "tiny_segmenter"}


def test_all_weights_together_stay_under_60_mb() -> None:
    assert sum(path.stat().st_size for path in FILES) < 60_000_000


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.parent.relative_to(WEIGHTS)))
def test_a_card_states_recipe_time_loss_and_hash(path: pathlib.Path) -> None:
    card = (path.parent / "card.md").read_text()
    assert hashlib.sha256(path.read_bytes()).hexdigest() in card
    assert "`python -m training." in card
    for fact in ("seconds", "loss", "steps"):
        assert re.search(rf"^\| {fact} \| \d", card, re.MULTILINE), fact
