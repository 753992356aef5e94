"""Token-guided attention amplification: stronger text guidance after reuse (TGAA; Chorus, section 3.2, eqs. 2 to 4).

A source's latent keeps drawing its own scene. So the keys of the target's differing words and the output of every
cross-attention are amplified, most at high noise and for sources that resemble the target least. Done by hooks for
the time of one forward; the model's class and weights stay as they are.
Knows nothing about prompts, tokenizers or where the differing words come from.

Symbols: gamma_k and gamma_o the two gains.
Shape letters: B batch, N heads, Q queries, L text tokens, K head width, D width.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from reprise.chorus.gains import Gains
from reprise.hooks import Hook, hooked


def amplify_token_attention(
    query_BNQK: Tensor, key_BNLK: Tensor, value_BNLK: Tensor, *, token_indices: Sequence[int], gain: float
) -> Tensor:
    """Attend with the keys of some tokens times gamma_k: eq. 2 as it is written, the reference of `amplified`."""
    key_BNLK = key_BNLK.clone()
    key_BNLK[:, :, list(token_indices)] *= gain
    logits_BNQL = query_BNQK @ key_BNLK.transpose(2, 3) / math.sqrt(query_BNQK.shape[3])
    return logits_BNQL.softmax(3) @ value_BNLK


@contextlib.contextmanager
def amplified(transformer: Any, gains: Gains, token_indices: Sequence[int], *, num_text_tokens: int) -> Iterator[None]:
    """Amplify the cross-attentions of a WanTransformer3DModel's forwards in this context, on this thread alone.

    `token_indices` are the differing tokens among the `num_text_tokens` states that it attends to. Their keys are
    weighted behind the key norm, which would undo it (eq. 2); the output behind its projection (eq. 3). Wrap the
    conditional forward only: a negative prompt has other tokens. Gains of exactly 1.0 install nothing. Works for the
    dense forward and for the region's.
    Raises ValueError for blocks compiled by torch, which would pass over the hooks without a word.
    """
    with hooked(transformer, _hooked_modules(transformer, gains, token_indices, num_text_tokens)):
        yield


def _hooked_modules(
    transformer: Any, gains: Gains, token_indices: Sequence[int], num_text_tokens: int
) -> list[tuple[Any, Hook]]:
    """Pair every module with the hook that it gets."""
    if token_indices and not 0 <= min(token_indices) <= max(token_indices) < num_text_tokens:
        raise ValueError(f"expected token indices below {num_text_tokens=}, got {list(token_indices)}")
    weights_L1 = torch.ones(num_text_tokens, 1, device=transformer.device)
    weights_L1[list(token_indices)] = gains.key

    def scale_keys(_module: Any, _args: Any, key_BLD: Tensor) -> Tensor:
        return (key_BLD * weights_L1).type_as(key_BLD)

    def scale_output(_module: Any, _args: Any, output_BQD: Tensor) -> Tensor:
        return output_BQD * gains.output

    attentions = [block.attn2 for block in transformer.blocks]
    pairs: list[tuple[Any, Hook]] = []
    if gains.key != 1 and token_indices:
        pairs += [(attention.norm_k, scale_keys) for attention in attentions]
    if gains.output != 1:
        pairs += [(attention, scale_output) for attention in attentions]
    return pairs
