"""Train the tiny open_clip text and image model: `python -m training.clip`.

Contrastive learning on tiny-world prompts and a 2x2 mosaic of four frames, so that the picture shows motion.
The folder it writes loads with open_clip's own `local-dir:` names, exactly as a published model would.

Shape letters: B pairs, T frames, H, W pixels, C channels.
"""

import argparse
import json
import math
import shutil
from typing import cast

import numpy as np
import open_clip
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from reprise.tinyworld import SceneSpec, change_one, is_held_out, render_scene, sample_scene, write_prompt
from training.recipe import WEIGHTS, Run, generator_for, write_card
from training.text_encoder import MAX_TOKENS, VOCABULARY

SEED, BATCH, LEARNING_RATE = 41, 128, 1e-3
FOLDER = WEIGHTS / "tiny_clip"
CONFIG = {
    "model_cfg": {
        "embed_dim": 128,
        "vision_cfg": {"image_size": 128, "layers": 3, "width": 128, "head_width": 32, "patch_size": 16},
        "text_cfg": {
            "context_length": MAX_TOKENS,
            "vocab_size": VOCABULARY,
            "width": 128,
            "heads": 4,
            "layers": 3,
            "hf_tokenizer_name": "tiny",
            "pool_type": "eos",
            "eos_id": 1,
            "pad_id": 0,
        },
    },
    "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
}


def frame_mosaic(frames_THWC: Tensor) -> Tensor:
    """Lay four evenly spaced frames (T, H, W, C) uint8 out as one picture (C, 2H, 2W) in -1..1."""
    picked = frames_THWC[torch.linspace(0, len(frames_THWC) - 1, 4).round().long()]
    rows = [torch.cat(list(pair), 1) for pair in (picked[:2], picked[2:])]
    return torch.cat(rows, 0).permute(2, 0, 1).float() / 127.5 - 1


def render_mosaics(count: int, seed: int, *, held_out: bool) -> tuple[Tensor, list[SceneSpec]]:
    """Render mosaics (n, C, 2H, 2W) fp16 of random scenes, each followed by a twin with one attribute changed.

    Twins share a batch, so that the model learns what a single word changes, motion included.
    """
    rng = np.random.default_rng(seed)
    pictures: list[Tensor] = []
    scenes: list[SceneSpec] = []
    while len(scenes) < count:
        scene = sample_scene(rng)
        twin = change_one(scene, rng)
        if is_held_out(scene) == is_held_out(twin) == held_out:
            for shown in (scene, twin):
                frames = torch.from_numpy(render_scene(shown, 17, rng).frames_THWC)
                pictures.append(frame_mosaic(frames).half())
                scenes.append(shown)
    return torch.stack(pictures), scenes


def word(tokenizer: PreTrainedTokenizerFast, scenes: list[SceneSpec], rng: np.random.Generator) -> Tensor:
    """Tokenise a fresh wording of each scene."""
    prompts = [write_prompt(scene, rng) for scene in scenes]
    batch = tokenizer(prompts, padding="max_length", max_length=MAX_TOKENS, truncation=True, return_tensors="pt")
    return cast(Tensor, batch.input_ids)


@torch.no_grad()
def measure(model: open_clip.CLIP, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Measure on held-out scenes: top-1 of 100 both ways, and the cosines that reuse will see."""
    pictures, scenes = render_mosaics(100, 97, held_out=True)
    rng = np.random.default_rng(96)
    text = model.encode_text(word(tokenizer, scenes, rng), normalize=True)
    again = model.encode_text(word(tokenizer, scenes, rng), normalize=True)
    score = text @ model.encode_image(pictures.float(), normalize=True).T
    truth, scores = torch.arange(100), text @ text.T
    twins, others = scores[truth, truth ^ 1], scores[(truth[:, None] // 2) != (truth // 2)]
    return {
        "text_to_video_top1": float((score.argmax(1) == truth).float().mean()),
        "video_to_text_top1": float((score.argmax(0) == truth).float().mean()),
        "cosine_paraphrase_mean": round(float((text * again).sum(-1).mean()), 3),
        "cosine_one_attribute_changed_mean": round(float(twins.mean()), 3),
        "cosine_other_scene_mean": round(float(others.mean()), 3),
        "cosine_other_scene_p99": round(float(others.quantile(0.99)), 3),
    }


def main() -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "open_clip_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    for path in (WEIGHTS / "tiny" / "tokenizer").glob("*.json"):
        shutil.copy(path, FOLDER / path.name)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    model = open_clip.create_model(f"local-dir:{FOLDER}", load_weights=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.05)
    pictures, scenes = render_mosaics(12_000, SEED, held_out=False)

    def step(index: int) -> float:
        pairs = 2 * torch.randint(len(scenes) // 2, (BATCH // 2,), generator=generator_for(SEED, index))
        rows = torch.cat([pairs, pairs + 1])
        scale = min(1, (index + 1) / 100) * 0.5 * (1 + math.cos(math.pi * index / args.steps))
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * scale
        ids = word(tokenizer, [scenes[row] for row in rows.tolist()], np.random.default_rng((SEED, index)))
        image, text, logit_scale = model(pictures[rows].float(), ids)[:3]
        logits = logit_scale * image @ text.T
        truth = torch.arange(BATCH)
        loss = (nn.functional.cross_entropy(logits, truth) + nn.functional.cross_entropy(logits.T, truth)) / 2
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(30))
        return loss.item()

    facts = Run(name="clip", num_steps=args.steps, state={"model": model, "optimizer": optimizer}).train(step)
    model.eval()
    half = {name: value.detach().half().contiguous() for name, value in model.state_dict().items()}
    save_file(half, FOLDER / "open_clip_model.safetensors", metadata={"format": "pt"})
    write_card(
        FOLDER,
        title="Tiny CLIP",
        recipe=f"python -m training.clip --steps {args.steps} --threads {args.threads}",
        text="An open_clip model (text and image, width 128, 128-d embeddings) of tiny-world prompts and 2x2 mosaics "
        "of four frames. `*_top1` is among 50 held-out scenes and their twins; cosines are between prompts.",
        facts={**facts, **measure(model, tokenizer)},
    )


if __name__ == "__main__":
    main()
