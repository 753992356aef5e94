"""Prompt embeddings by open_clip; the only place that imports it.

A model is named as open_clip names it: an architecture with a pretrained tag (`ViT-L-14:openai`), a hub
repository (`hf-hub:...`) or a folder (`local-dir:...`), which is how the bundled tiny model loads. Knows
nothing about the index or the cache.
"""

import hashlib
import pathlib
import threading

import numpy as np
import open_clip
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_store.contracts import EncoderTag

_SCHEMAS = ("hf-hub:", "local-dir:")


class OpenClipEmbedder:
    """Embed prompts to unit vectors; tells when a prompt is longer than the model reads."""

    def __init__(self, model: str, *, device: str = "cpu") -> None:
        name, _, pretrained = (model, "", "") if model.startswith(_SCHEMAS) else model.partition(":")
        self._device = torch.device(device)
        self._model = open_clip.create_model(name, pretrained=pretrained or None, device=self._device).eval()
        self._tokenizer = open_clip.get_tokenizer(name)
        # A fast tokenizer sets its truncation per call and fails with "Already borrowed" when two threads meet.
        self._tokenizer_lock = threading.Lock()
        self._context_length = int(self._model.context_length)
        self.tag = EncoderTag(name=pathlib.PurePath(name).name, revision=self._fingerprint(), dim=len(self.embed("a")))

    def _fingerprint(self) -> str:
        """Hash all weights but the image tower's: embeddings of differently trained models are never compared."""
        digest = hashlib.blake2b(digest_size=6)
        for name, weights in sorted(self._model.state_dict().items()):
            if not name.startswith("visual."):
                digest.update(name.encode())
                digest.update(weights.float().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def fits(self, prompt: str) -> bool:
        """Tell whether the whole prompt is read; a longer one must not be matched on its beginning alone."""
        # Zeros pad the end, but a zero before it is a token: "!" in CLIP's own vocabulary.
        used = self._tokenize(prompt, 2 * self._context_length)[0].nonzero()
        return int(used.max()) < self._context_length

    def _tokenize(self, prompt: str, context_length: int) -> Tensor:
        with self._tokenizer_lock:
            tokens: Tensor = self._tokenizer(prompt, context_length=context_length)
        return tokens

    @torch.inference_mode()
    def embed(self, prompt: str) -> NDArray[np.float32]:
        """Embed one prompt to a float32 vector of length 1."""
        tokens = self._tokenize(prompt, self._context_length).to(self._device)
        vector = self._model.encode_text(tokens, normalize=True)[0]
        return np.asarray(vector.float().cpu().numpy(), np.float32)
