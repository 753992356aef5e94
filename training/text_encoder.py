"""Train the tokenizer and the text encoder of the tiny family: `python -m training.text_encoder`.

A byte-fallback BPE learnt on prompts of the grammar, and a two-layer UMT5 encoder trained to name, at every
token, the attributes of the object that token speaks of and of the background. Its per-token states are what
the video model attends to; it stays frozen afterwards, so every model of the family shares it.

Shape letters: B prompts, L tokens, D width of a state.
"""

import argparse
import pathlib
import re
from typing import Final

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from reprise.tinyworld import SceneSpec, sample_scene, write_prompt
from reprise.tinyworld.scene import BACKGROUNDS, COLOURS, MOTIONS, PATTERNS, SHAPES, SIZES
from training.recipe import WEIGHTS, Run, load_half, save_half, write_card

SEED, BATCH, LEARNING_RATE = 5, 48, 3e-3
MAX_TOKENS: Final = 48
"""Fixed padded length: Wan's cross-attention has no mask, so the number of zero states matters."""
VOCABULARY: Final = 640
_OBJECT_SLOTS, _PLACE_SLOT, _IGNORE = 2, 2, -100
_OBJECT_TABLES: Final = {"shape": SHAPES, "colour": tuple(COLOURS), "size": tuple(SIZES), "motion": tuple(MOTIONS)}
_SCENE_TABLES: Final = {"background": tuple(BACKGROUNDS), "pattern": PATTERNS}
_PLACE = re.compile(
    r"\b(?:over|on|in front of|against) an? (?:[\w-]+ ){0,4}(?:background|backdrop)(?: with (?:stripes|a gradient))?"
)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Learn the tokenizer; words of the grammar become one token, anything else falls back to pieces and bytes."""
    rng = np.random.default_rng(SEED)
    prompts = [write_prompt(sample_scene(rng), rng) for _ in range(20_000)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    special = ["<pad>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=list("abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"()-"),
        show_progress=False,
    )
    tokenizer.train_from_iterator(prompts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=MAX_TOKENS
    )


def make_encoder() -> UMT5EncoderModel:
    """Build the encoder: 2 layers, width 128."""
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=VOCABULARY,
            d_model=128,
            d_kv=32,
            num_heads=4,
            d_ff=256,
            num_layers=2,
            dropout_rate=0.0,
            relative_attention_num_buckets=32,
            relative_attention_max_distance=64,
            pad_token_id=0,
            eos_token_id=1,
        )
    )


def load_text(folder: pathlib.Path = WEIGHTS / "tiny") -> tuple[PreTrainedTokenizerFast, UMT5EncoderModel]:
    """Load the frozen pair for the recipes that come after this one."""
    encoder = make_encoder()
    load_half(encoder, folder / "text_encoder" / "model.safetensors")
    return PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer"), encoder.eval().requires_grad_(False)


def encode(tokenizer: PreTrainedTokenizerFast, encoder: UMT5EncoderModel, prompts: list[str]) -> Tensor:
    """Encode prompts to states (B, L, D), zero on the padding as Wan's pipeline makes them."""
    batch = tokenizer(prompts, padding="max_length", max_length=MAX_TOKENS, truncation=True, return_tensors="pt")
    states = encoder(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
    return states * batch.attention_mask[..., None]  # type: ignore[no-any-return]


def _slots(prompt: str, offsets: list[tuple[int, int]]) -> list[int]:
    """Tell for every token whether it speaks of the first object, the second, or the place."""
    place = _PLACE.search(prompt)
    assert place is not None, prompt
    joint = next(
        (
            m.start()
            for m in re.finditer(r" (?:and|while) an? ", prompt)
            if not place.start() <= m.start() < place.end()
        ),
        None,
    )
    slots = []
    for start, end in offsets:
        inside = start < place.end() and end > place.start()
        slots.append(_PLACE_SLOT if inside or start == end else int(joint is not None and start > joint))
    return slots


def _labels(scene: SceneSpec, slots: list[int], length: int) -> dict[str, list[int]]:
    labels = {name: [_IGNORE] * length for name in ("slot", *_OBJECT_TABLES, *_SCENE_TABLES)}
    for index, slot in enumerate(slots):
        labels["slot"][index] = slot
        for name, table in _SCENE_TABLES.items():
            labels[name][index] = table.index(getattr(scene, name))
        if slot < _OBJECT_SLOTS:
            for name, table in _OBJECT_TABLES.items():
                labels[name][index] = table.index(getattr(scene.objects[slot], name))
    return labels


def labelled_batch(tokenizer: PreTrainedTokenizerFast, rng: np.random.Generator) -> tuple[list[str], dict[str, Tensor]]:
    """Draw prompts and, per token, what it must name."""
    scenes = [sample_scene(rng) for _ in range(BATCH)]
    prompts = [write_prompt(scene, rng) for scene in scenes]
    rows = []
    for scene, prompt in zip(scenes, prompts, strict=True):
        offsets = tokenizer(prompt, return_offsets_mapping=True)["offset_mapping"]
        rows.append(_labels(scene, _slots(prompt, offsets), MAX_TOKENS))
    return prompts, {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def main() -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    folder = WEIGHTS / "tiny"
    tokenizer, encoder = train_tokenizer(), make_encoder()
    tokenizer.save_pretrained(folder / "tokenizer")
    sizes = {"slot": 3, **{k: len(v) for k, v in {**_OBJECT_TABLES, **_SCENE_TABLES}.items()}}
    heads = nn.ModuleDict({name: nn.Linear(encoder.config.d_model, size) for name, size in sizes.items()})
    optimizer = torch.optim.AdamW([*encoder.parameters(), *heads.parameters()], lr=LEARNING_RATE)

    def predict(index: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        prompts, labels = labelled_batch(tokenizer, np.random.default_rng((SEED, index)))
        states = encode(tokenizer, encoder, prompts)
        return {name: head(states) for name, head in heads.items()}, labels

    def step(index: int) -> float:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (index + 1) / 30) * (1 - index / args.steps)
        logits, labels = predict(index)
        loss = sum(
            nn.functional.cross_entropy(logits[name].flatten(0, 1), labels[name].flatten(), ignore_index=_IGNORE)
            for name in sizes
        )
        assert isinstance(loss, Tensor)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    run = Run(
        name="text_encoder", num_steps=args.steps, state={"encoder": encoder, "heads": heads, "optimizer": optimizer}
    )
    facts: dict[str, float] = run.train(step)
    with torch.no_grad():
        logits, labels = predict(10_000_000)
        for name in sizes:
            known = labels[name] != _IGNORE
            facts[f"accuracy_{name}"] = round(
                float((logits[name].argmax(-1)[known] == labels[name][known]).float().mean()), 4
            )
    encoder.config.save_pretrained(folder / "text_encoder")
    save_half(encoder, folder / "text_encoder" / "model.safetensors")
    write_card(
        folder / "text_encoder",
        title="Tiny text encoder",
        recipe=f"python -m training.text_encoder --steps {args.steps} --threads {args.threads}",
        text="UMT5 encoder, 2 layers, width 128, over a byte-fallback BPE of the grammar. Trained to name, at "
        "every token, the attributes it speaks of; `accuracy_*` is per token on fresh prompts.",
        facts=facts,
    )


if __name__ == "__main__":
    main()
