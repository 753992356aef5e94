"""Prompt embeddings by open_clip; the only place that imports it.

A model is named as open_clip names it: an architecture with a pretrained tag (`ViT-L-14:openai`), a hub
repository (`hf-hub:...`) or a folder (`local-dir:...`), which is how the bundled tiny model loads. Knows
nothing about the index or the cache.
"""

import hashlib
import pathlib

import numpy as np
import open_clip
import torch
from numpy.typing import NDArray

from cache_store.contracts import EncoderTag

_SCHEMAS = ("hf-hub:", "local-dir:")


class OpenClipEmbedder:
    """Embed prompts to unit vectors; tells when a prompt is longer than the model reads."""

    def __init__(self, model: str, *, device: str = "cpu") -> None:
        name, _, pretrained = (model, "", "") if model.startswith(_SCHEMAS) else model.partition(":")
        self._device = torch.device(device)
        self._model = open_clip.create_model(name, pretrained=pretrained or None, device=self._device).eval()
        self._tokenizer = open_clip.get_tokenizer(name)
        self._context_length = int(self._model.context_length)
        self.tag = EncoderTag(name=pathlib.PurePath(name).name, revision=self._fingerprint(), dim=len(self.embed("a")))

    def _fingerprint(self) -> str:
        """Hash the last weights of the text tower: they differ whenever the model was trained differently."""
        weights = self._model.text_projection.detach().float().cpu().contiguous().numpy().tobytes()
        return hashlib.sha256(weights).hexdigest()[:12]

    def fits(self, prompt: str) -> bool:
        """Tell whether the whole prompt is read; a longer one must not be matched on its beginning alone."""
        tokens = self._tokenizer(prompt, context_length=2 * self._context_length)
        return int((tokens != 0).sum()) <= self._context_length

    @torch.inference_mode()
    def embed(self, prompt: str) -> NDArray[np.float32]:
        """Embed one prompt to a float32 vector of length 1."""
        tokens = self._tokenizer(prompt, context_length=self._context_length).to(self._device)
        vector = self._model.encode_text(tokens, normalize=True)[0]
        return np.asarray(vector.float().cpu().numpy(), np.float32)
