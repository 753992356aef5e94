"""Between torch tensors and LatentRecord: the only file of this package that imports torch."""

import torch
from torch import Tensor

from cache_store.contracts import LatentRecord


def from_tensor(latent: Tensor) -> LatentRecord:
    """Copy a tensor of float32, bfloat16 or float16 into a record, bit for bit."""
    host = latent.detach().cpu().contiguous()  # the record holds bytes of the host
    data = host.flatten().view(torch.uint8).numpy().tobytes()
    return LatentRecord(dtype=str(host.dtype).removeprefix("torch."), shape=tuple(host.shape), data=data)


def to_tensor(record: LatentRecord) -> Tensor:
    """Return the tensor on the host, bit for bit; it owns its memory."""
    dtype = getattr(torch, record.dtype)
    return torch.frombuffer(bytearray(record.data), dtype=dtype).reshape(record.shape)
