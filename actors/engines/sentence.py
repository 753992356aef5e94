"""Prompt embeddings by sentence-transformers; the only place that imports it.

Reads its folders and hub repositories: a BERT-like encoder, then a mean over the tokens that the attention mask keeps
(or whatever pooling the folder names). Scores are not those of CLIP: a threshold belongs to one encoder. Knows nothing
about the index or the cache.
"""

import hashlib
import json
import pathlib
import threading

import numpy as np
from numpy.typing import NDArray

from cache_store.contracts import EncoderTag

try:
    from sentence_transformers import SentenceTransformer
except ImportError as error:
    raise ImportError(
        "an embedder named `sentence:...` needs sentence-transformers: pip install 'reprise[sentence]'"
    ) from error


class SentenceEmbedder:
    """Embed prompts to unit vectors; tells when a prompt is longer than the model reads."""

    def __init__(self, model: str, *, device: str = "cpu") -> None:
        self._model = SentenceTransformer(model, device=device).eval()
        # A fast tokenizer sets its truncation per call and fails with "Already borrowed" when two threads meet.
        self._lock = threading.Lock()
        limit = self._model.max_seq_length
        if limit is None:
            raise ValueError(f"{model} names no longest sequence: set max_seq_length in its sentence_bert_config.json")
        self._max_tokens = int(limit)
        self.tag = EncoderTag(name=pathlib.PurePath(model).name, revision=self._fingerprint(), dim=len(self.embed("a")))

    def _fingerprint(self) -> str:
        """Hash the weights and what follows the encoder: embeddings of differently made models are never compared."""
        digest = hashlib.blake2b(digest_size=6)
        for name, weights in sorted(self._model.state_dict().items()):
            digest.update(name.encode())
            digest.update(weights.float().cpu().contiguous().numpy().tobytes())
        for module in list(self._model.children())[1:]:
            digest.update(type(module).__name__.encode())
            digest.update(json.dumps(module.get_config_dict(), sort_keys=True).encode())
        return digest.hexdigest()

    def fits(self, prompt: str) -> bool:
        """Tell whether the whole prompt is read; a longer one must not be matched on its beginning alone."""
        with self._lock:
            tokens = self._model.tokenizer(prompt, truncation=False, verbose=False)["input_ids"]
        return len(tokens) <= self._max_tokens

    def embed(self, prompt: str) -> NDArray[np.float32]:
        """Embed one prompt to a float32 vector of length 1."""
        with self._lock:
            vector = self._model.encode(prompt, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vector, np.float32)
