"""Masks by Grounding DINO and SAM 2, through transformers: a detector finds a phrase's boxes, a segmenter fills them.

Chorus section 3.3.1. Both load from a folder or from the hub in the layout that transformers publishes; a SAM 2
checkpoint made for video loads too, its memory left out. Knows nothing about key frames or prompts.

Shape letters: K frames, P phrases, B boxes, H, W pixels, C colour channels.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GroundingDinoForObjectDetection, GroundingDinoProcessor, Sam2Model, Sam2Processor

BOX_THRESHOLD: Final = 0.3
"""Least score of a box. The processor's own 0.25 suits detection; a region that nobody named costs compute here."""
FRAMES_PER_PASS: Final = 4
"""Frames that the detector takes at once, which bounds its memory."""


class GroundedSam:
    """Mark all that a phrase names: boxes above a threshold, a mask in each, their union."""

    def __init__(self, *, detector: str, segmenter: str, device: str = "cpu") -> None:
        self._device = torch.device(device)
        self._detector = self._ready(GroundingDinoForObjectDetection, detector)
        self._detector_inputs = GroundingDinoProcessor.from_pretrained(detector)
        self._segmenter = self._ready(Sam2Model, segmenter)
        self._segmenter_inputs = Sam2Processor.from_pretrained(segmenter)

    def _ready(self, model_class: Any, name: str) -> Any:
        model = model_class.from_pretrained(name, dtype=torch.float32, use_safetensors=True)
        return model.eval().requires_grad_(False).to(self._device)

    @torch.inference_mode()
    def segment(self, frames_KHWC: NDArray[np.uint8], phrases: Sequence[str]) -> NDArray[np.bool_]:
        """Give masks (P, K, H, W); all false where the detector finds no box."""
        boxes_PK = [self._find_boxes(frames_KHWC, phrase) for phrase in phrases]
        masks_PKHW = np.zeros((len(phrases), *frames_KHWC.shape[:3]), np.bool_)
        for k, frame_HWC in enumerate(frames_KHWC):
            with_boxes = [p for p in range(len(phrases)) if len(boxes_PK[p][k])]
            if with_boxes:
                pixels = self._segmenter_inputs(images=frame_HWC, return_tensors="pt").pixel_values
                embeddings = self._segmenter.get_image_embeddings(pixels.to(self._device))
            for p in with_boxes:
                masks_PKHW[p, k] = self._fill_boxes(embeddings, boxes_PK[p][k], frame_HWC.shape[:2])
        return masks_PKHW

    def _find_boxes(self, frames_KHWC: NDArray[np.uint8], phrase: str) -> list[Tensor]:
        """Give each frame's boxes (B, 4) in pixels, left, top, right, bottom.

        One phrase a pass: in a joint query the detector names spans of the text, which need not be one of the phrases.
        """
        text = f"{phrase.lower().replace('.', ' ').strip()}."  # the detector knows lower case; a dot ends a phrase
        boxes: list[Tensor] = []
        for first in range(0, len(frames_KHWC), FRAMES_PER_PASS):
            frames = list(frames_KHWC[first : first + FRAMES_PER_PASS])
            inputs = self._detector_inputs(
                images=frames,
                text=[text] * len(frames),
                truncation=True,
                max_length=self._detector.config.max_text_len,
                return_tensors="pt",
            ).to(self._device)
            found = self._detector_inputs.post_process_grounded_object_detection(
                self._detector(**inputs),
                inputs.input_ids,
                threshold=BOX_THRESHOLD,
                target_sizes=[frame.shape[:2] for frame in frames],
            )
            boxes += [result["boxes"] for result in found]
        return boxes

    def _fill_boxes(self, embeddings: list[Tensor], boxes_B4: Tensor, size: tuple[int, ...]) -> NDArray[np.bool_]:
        """Give the union (H, W) of the best mask in each box of one frame."""
        prompts = self._segmenter_inputs(
            original_sizes=[list(size)], input_boxes=[boxes_B4.tolist()], return_tensors="pt"
        )
        output = self._segmenter(
            image_embeddings=embeddings, input_boxes=prompts.input_boxes.to(self._device), multimask_output=False
        )
        (masks_B1HW,) = self._segmenter_inputs.post_process_masks(output.pred_masks.cpu(), [list(size)])
        return np.asarray(masks_B1HW.any(0)[0].numpy(), np.bool_)
