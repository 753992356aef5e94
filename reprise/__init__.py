"""Pure algorithms of Reprise over tensors: sampling, reuse and the tiny world.

Imports torch, numpy and the model classes of diffusers and transformers. Knows nothing about Ray,
HTTP, Redis or where latents are kept.
"""

__version__ = "0.1.0"
