"""Forward hooks on parts of a shared model, for the time of one context and for one thread alone.

Knows nothing about what a hook does. The model's classes and weights stay as they are.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

Hook = Callable[[Any, Any, Tensor], Tensor | None]
"""Module, its arguments and its output to another output; None leaves the output as it is."""

_hooks_lock = threading.Lock()
"""torch numbers hooks with a plain counter: two threads that add one at once could get the same number."""


@contextlib.contextmanager
def hooked(transformer: Any, pairs: Sequence[tuple[Any, Hook]]) -> Iterator[None]:
    """Install each hook on its module of a WanTransformer3DModel; other threads run the same model without them.

    Raises ValueError for blocks compiled by torch, which would pass over the hooks without a word.
    """
    if pairs and any(map(_is_compiled, (transformer, *transformer.blocks))):
        raise ValueError("hooks have no effect on blocks that torch has compiled: use blocks that are not")
    owner = threading.get_ident()
    with _hooks_lock:
        handles = [module.register_forward_hook(_only_on(owner, hook)) for module, hook in pairs]
    try:
        yield
    finally:
        with _hooks_lock:
            for handle in handles:
                handle.remove()


def _only_on(owner: int, hook: Hook) -> Hook:
    def run(module: Any, args: Any, output: Tensor) -> Tensor | None:
        return hook(module, args, output) if threading.get_ident() == owner else None

    return run


def _is_compiled(module: Any) -> bool:
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
