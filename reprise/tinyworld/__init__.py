"""A synthetic world with known ground truth: scenes, prompts, pixels, and a scorer that reads pixels back."""

from reprise.tinyworld.grammar import read_prompt, write_prompt
from reprise.tinyworld.render import FRAME_SIZE, Rendering, render_scene
from reprise.tinyworld.scene import ObjectSpec, SceneSpec, change_one, is_held_out, sample_scene
from reprise.tinyworld.score import AttributeScore, VideoReading, read_video, score_video

__all__ = [
    "FRAME_SIZE",
    "AttributeScore",
    "ObjectSpec",
    "Rendering",
    "SceneSpec",
    "VideoReading",
    "change_one",
    "is_held_out",
    "read_prompt",
    "read_video",
    "render_scene",
    "sample_scene",
    "score_video",
    "write_prompt",
]
