"""Masks by a PhraseSegmenter, such as the bundled one: a folder with its config, weights and tokenizer.

Knows nothing about key frames or prompts.

Shape letters: K frames, P phrases, T tokens, H, W pixels, C colour channels.
"""

import threading
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from reprise.chorus.segmenter import PhraseSegmenter


class TinySegmenter:
    """Read every frame once and mark in it what each phrase names."""

    def __init__(self, folder: str, *, device: str = "cpu") -> None:
        self._device = torch.device(device)
        model = PhraseSegmenter.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
        self._model = model.eval().requires_grad_(False).to(self._device)
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        # A fast tokenizer sets its padding per call and fails with "Already borrowed" when two threads meet.
        self._tokenizer_lock = threading.Lock()

    @torch.inference_mode()
    def segment(self, frames_KHWC: NDArray[np.uint8], phrases: Sequence[str]) -> NDArray[np.bool_]:
        """Give masks (P, K, H, W); all false where the model takes the phrase for absent."""
        frames_KCHW = torch.from_numpy(frames_KHWC).to(self._device).permute(0, 3, 1, 2).float() / 127.5 - 1
        tokens_KPT = self._tokenise(phrases).to(self._device).expand(len(frames_KCHW), -1, -1)
        masks_KPHW, presence_KP = self._model(frames_KCHW, tokens_KPT)
        found_KPHW = (masks_KPHW > 0) & (presence_KP > 0)[..., None, None]
        return np.asarray(found_KPHW.transpose(0, 1).cpu().numpy(), np.bool_)

    def _tokenise(self, phrases: Sequence[str]) -> Tensor:
        with self._tokenizer_lock:
            batch = self._tokenizer(list(phrases), padding=True, truncation=True, return_tensors="pt")
        tokens_PT: Tensor = batch.input_ids
        return tokens_PT
