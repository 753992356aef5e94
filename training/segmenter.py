"""Train the tiny phrase-conditioned segmenter: `python -m training.segmenter`.

Frames of random scenes with their exact masks, half of them as the video decoder gives them back, because at run time
it sees generated video. Phrases are worded by the grammar; about half name nothing in the frame: a colour or a shape
changed, the background, or a thing the world does not have. Ends by measuring on held-out scenes.

A phrase means the objects whose shape and colour fit every such word. Sizes are relative, so a size chooses among
several that fit and never excludes the only one.

Shape letters: N frames, P phrases, T tokens, H, W pixels, C colour channels, K objects of a scene.
"""

import argparse
import dataclasses
import math
import shutil
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from reprise.chorus.segmenter import PhraseSegmenter
from reprise.tinyworld import ObjectSpec, SceneSpec, is_held_out, render_scene, sample_scene
from reprise.tinyworld.grammar import BACKGROUND_WORDS, COLOUR_WORDS, PATTERN_WORDS, SHAPE_WORDS, SIZE_WORDS
from reprise.tinyworld.scene import sample_object
from training.latents import load_vae
from training.recipe import WEIGHTS, Average, Run, generator_for, save_half, write_card
from training.vae import to_frames, to_video

SEED, BATCH, PHRASES, LEARNING_RATE = 61, 32, 6, 3e-3
WINDOW: Final = 5
"""Frames rendered of a scene: the least that passes through the autoencoder with both kinds of frame groups."""
MAX_TOKENS: Final = 16
HELD_OUT_SCENES = 300
"""That the card's figures are of."""
FOLDER = WEIGHTS / "tiny_segmenter"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


STRANGERS: Final = _words(
    "dog cat horse bird fish car truck train boat plane bicycle house tree flower mountain river road bridge man woman "
    "child robot astronaut dragon lion elephant bear monkey rabbit guitar piano phone computer chair table lamp bottle "
    "cup plate knife shirt hat shoe umbrella candle book door window cloud sun moon fire snowman castle tower ship "
    "rocket butterfly spider snake apple banana pizza cake bread cheese fox wolf cow sheep duck owl frog turtle"
)
"""Nouns that name nothing in this world."""
UNSEEN_STRANGERS: Final = _words("tiger camel violin kettle helicopter pumpkin wizard soldier tractor penguin")
"""Such nouns that only the measurement uses."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What a phrase asks for; None is not said. A shape or colour outside the world fits nothing."""

    shape: str
    colour: str | None
    size: str | None


def objects_named(wanted: Wanted, scene: SceneSpec) -> list[int]:
    """Give the places in the scene of the objects that a phrase means."""
    fits = [
        index
        for index, item in enumerate(scene.objects)
        if item.shape == wanted.shape and wanted.colour in (None, item.colour)
    ]
    return [index for index in fits if scene.objects[index].size == wanted.size] or fits


def draw_wanted(item: ObjectSpec, rng: np.random.Generator) -> Wanted:
    """Choose which attributes of an object its phrase says."""
    says_colour, says_size = rng.random() < 0.8, rng.random() < 0.5
    return Wanted(item.shape, item.colour if says_colour else None, item.size if says_size else None)


def write_phrase(wanted: Wanted, rng: np.random.Generator) -> str:
    """Word a phrase by the grammar's synonyms, now and then with an article; a stranger stands for itself."""

    def pick(options: Sequence[str]) -> str:
        return options[int(rng.integers(len(options)))]

    words = [
        pick(SIZE_WORDS[wanted.size]) if wanted.size else "",
        pick(COLOUR_WORDS[wanted.colour]) if wanted.colour else "",
        pick(SHAPE_WORDS.get(wanted.shape, (wanted.shape,))),
    ]
    article = pick(("a", "the")) if rng.random() < 0.2 else ""
    return " ".join(word for word in (article, *words) if word)


def draw_present(scene: SceneSpec, rng: np.random.Generator) -> tuple[str, list[int]]:
    """Word a phrase for an object of the scene, and give what it means."""
    wanted = draw_wanted(scene.objects[int(rng.integers(len(scene.objects)))], rng)
    return write_phrase(wanted, rng), objects_named(wanted, scene)


def draw_absent(scene: SceneSpec, rng: np.random.Generator, strangers: Sequence[str] = STRANGERS) -> str:
    """Word a phrase that names no object of the scene."""
    kind = rng.random()
    if kind < 0.1:
        colours = BACKGROUND_WORDS[scene.background]
        patterns = PATTERN_WORDS[scene.pattern]
        return patterns[int(rng.integers(len(patterns)))].format(colour=colours[int(rng.integers(len(colours)))])
    while True:
        near, other = scene.objects[int(rng.integers(len(scene.objects)))], sample_object(rng)
        if kind < 0.25:
            item = dataclasses.replace(near, shape=strangers[int(rng.integers(len(strangers)))])
        elif kind < 0.55:
            item = dataclasses.replace(near, colour=other.colour)
        elif kind < 0.85:
            item = dataclasses.replace(near, shape=other.shape)
        else:
            item = other
        wanted = draw_wanted(item, rng)
        if not objects_named(wanted, scene):
            return write_phrase(wanted, rng)


@dataclasses.dataclass(frozen=True, slots=True)
class FrameSet:
    """Frames (N, H, W, C) uint8 and, per object of their scene, its pixels (K, H, W) bool."""

    frames_NHWC: Tensor
    masks: list[NDArray[np.bool_]]
    scenes: list[SceneSpec]


@torch.no_grad()
def render_frames(num_scenes: int, seed: int, *, held_out: bool, num_decoded: int) -> FrameSet:
    """Render the first and last frame of short clips; the first `num_decoded` clips pass through the autoencoder."""
    rng = np.random.default_rng(seed)
    vae = load_vae()
    clips: list[Tensor] = []
    masks: list[NDArray[np.bool_]] = []
    scenes: list[SceneSpec] = []
    while len(clips) < num_scenes:
        scene = sample_scene(rng, num_objects=1 if rng.random() < 0.5 else 2)
        if is_held_out(scene) == held_out:
            rendering = render_scene(scene, WINDOW, rng)
            clips.append(torch.from_numpy(rendering.frames_THWC))
            masks += [rendering.masks_KTHW[:, 0], rendering.masks_KTHW[:, -1]]
            scenes += [scene, scene]
    video = torch.stack(clips)
    for first in range(0, num_decoded, 32):
        chosen = slice(first, min(first + 32, num_decoded))
        video[chosen] = to_frames(vae.decode(vae.moments(to_video(video[chosen])).chunk(2, 1)[0]).sample)
    return FrameSet(video[:, [0, -1]].flatten(0, 1), masks, scenes)


def to_pixels(frames_NHWC: Tensor) -> Tensor:
    """Turn uint8 frames into (N, C, H, W) in -1..1."""
    return frames_NHWC.permute(0, 3, 1, 2).float() / 127.5 - 1


def tokenise(tokenizer: PreTrainedTokenizerFast, phrases: list[str]) -> Tensor:
    """Turn phrases into padded tokens (P, T)."""
    batch = tokenizer(phrases, padding="max_length", max_length=MAX_TOKENS, truncation=True, return_tensors="pt")
    tokens: Tensor = batch.input_ids
    return tokens


def union_of(masks_KHW: NDArray[np.bool_], objects: list[int]) -> NDArray[np.bool_]:
    """Give the pixels of several objects; none for no object."""
    union: NDArray[np.bool_] = np.logical_or.reduce(masks_KHW[objects], axis=0)
    return union


def draw_batch(data: FrameSet, index: int) -> tuple[Tensor, list[str], Tensor]:
    """Draw step `index`'s frames (N, C, H, W), their N * P phrases and target masks (N, P, H, W)."""
    rows = torch.randint(len(data.scenes), (BATCH,), generator=generator_for(SEED, index)).tolist()
    rng = np.random.default_rng((SEED, index))
    phrases: list[str] = []
    targets = []
    for row in rows:
        scene = data.scenes[row]
        for place in range(PHRASES):
            phrase, objects = draw_present(scene, rng) if place < PHRASES // 2 else (draw_absent(scene, rng), [])
            phrases.append(phrase)
            targets.append(union_of(data.masks[row], objects))
    masks_NPHW = torch.from_numpy(np.stack(targets)).view(BATCH, PHRASES, *targets[0].shape).float()
    return to_pixels(data.frames_NHWC[rows]), phrases, masks_NPHW


def segmentation_loss(masks_NPHW: Tensor, presence_NP: Tensor, target_NPHW: Tensor) -> Tensor:
    """Add cross-entropy of pixels and of presence to the overlap (Dice) of those that are there."""
    there_NP = target_NPHW.flatten(2).any(2)
    pixels = F.binary_cross_entropy_with_logits(masks_NPHW, target_NPHW)
    presence = F.binary_cross_entropy_with_logits(presence_NP, there_NP.float())
    share = masks_NPHW.sigmoid()[there_NP].flatten(1)
    truth = target_NPHW[there_NP].flatten(1)
    overlap = (2 * (share * truth).sum(1) + 1) / (share.sum(1) + truth.sum(1) + 1)
    return 4 * pixels + presence + 0.5 * (1 - overlap).mean()


@torch.no_grad()
def predict(model: PhraseSegmenter, data: FrameSet, tokens_NPT: Tensor) -> Tensor:
    """Give the masks (N, P, H, W), empty where the phrase is judged absent."""
    parts = []
    for frames, tokens in zip(torch.split(data.frames_NHWC, 64), torch.split(tokens_NPT, 64), strict=True):
        masks_NPHW, presence_NP = model(to_pixels(frames), tokens)
        parts.append((masks_NPHW > 0) & (presence_NP > 0)[..., None, None])
    return torch.cat(parts)


def measure(model: PhraseSegmenter, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Measure on held-out scenes, rendered and decoded: overlap per named object, and who is taken for present.

    A phrase that is there and not found counts as an overlap of 0.
    """
    facts: dict[str, float] = {}
    for name, num_decoded in (("rendered", 0), ("decoded", HELD_OUT_SCENES)):
        data = render_frames(HELD_OUT_SCENES, SEED + 1, held_out=True, num_decoded=num_decoded)
        rng = np.random.default_rng(SEED + 2)
        phrases, truths = [], []
        for scene, masks in zip(data.scenes, data.masks, strict=True):
            named = [Wanted(item.shape, item.colour, item.size) for item in (*scene.objects, scene.objects[0])[:2]]
            loose, objects = draw_present(scene, rng)
            phrases += [*(write_phrase(wanted, rng) for wanted in named), loose, draw_absent(scene, rng)]
            phrases.append(UNSEEN_STRANGERS[int(rng.integers(len(UNSEEN_STRANGERS)))])
            meant = [objects_named(wanted, scene) for wanted in named]
            truths += [union_of(masks, chosen) for chosen in (*meant, objects, [], [])]
        found_NPHW = predict(model, data, tokenise(tokenizer, phrases).view(len(data.scenes), -1, MAX_TOKENS))
        truth_NPHW = torch.from_numpy(np.stack(truths)).view_as(found_NPHW)
        overlap = (found_NPHW & truth_NPHW).sum((2, 3)) / (found_NPHW | truth_NPHW).sum((2, 3)).clamp(min=1)
        is_found = found_NPHW.flatten(2).any(2)
        is_pair = torch.tensor([len(scene.objects) == 2 for scene in data.scenes])
        values = {
            "iou_one_object": overlap[~is_pair, :3],
            "iou_two_objects": overlap[is_pair, :3],
            "iou_at_least_0.7": overlap[:, :3] >= 0.7,
            "present_found": is_found[:, :3],
            "absent_empty": ~is_found[:, 3],
            "unknown_noun_empty": ~is_found[:, 4],
        }
        facts |= {f"{name}_{key}": round(float(value.float().mean()), 4) for key, value in values.items()}
    return facts


def main() -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--scenes", type=int, default=6000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(WEIGHTS / "tiny" / "tokenizer")
    model = PhraseSegmenter(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=1e-3)
    average = Average(model, decay=0.995)
    data = render_frames(args.scenes, SEED, held_out=False, num_decoded=args.scenes // 2)

    def step(index: int) -> float:
        scale = min(1, (index + 1) / 50) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * index / args.steps)))
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * scale
        frames_NCHW, phrases, target_NPHW = draw_batch(data, index)
        tokens_NPT = tokenise(tokenizer, phrases).view(BATCH, PHRASES, MAX_TOKENS)
        masks_NPHW, presence_NP = model(frames_NCHW, tokens_NPT)
        loss = segmentation_loss(masks_NPHW, presence_NP, target_NPHW)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update(model)
        return loss.item()

    state = {"model": model, "optimizer": optimizer, "average": average}
    facts = Run(name="segmenter", num_steps=args.steps, state=state).train(step)
    average.copy_to(model)
    model.eval()
    model.save_config(FOLDER)
    save_half(model, FOLDER / "diffusion_pytorch_model.safetensors")
    for path in (WEIGHTS / "tiny" / "tokenizer").glob("*.json"):
        shutil.copy(path, FOLDER / path.name)
    write_card(
        FOLDER,
        title="Tiny phrase segmenter",
        recipe=f"python -m training.segmenter --steps {args.steps} --scenes {args.scenes} --threads {args.threads}",
        text=f"PhraseSegmenter, trained on frames of the tiny world and phrases of its grammar (seed {SEED}, batch "
        f"{BATCH} frames with {PHRASES} phrases each, half of the frames as the video decoder gives them). Figures are "
        f"of two frames of each of {HELD_OUT_SCENES} held-out scenes, rendered and decoded: `iou_*` is the mean "
        "overlap of a phrase's mask with the truth, 0 for one that was not found; `*_empty` is the share of phrases "
        "that name nothing in the frame and got no mask.",
        facts={**facts, **measure(model, tokenizer)},
    )


if __name__ == "__main__":
    main()
