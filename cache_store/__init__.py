"""Where reusable latents live: vector index, latent blobs, entry metadata, eviction, and the facade over them.

Implements the cache of Chorus (section 3.1). Knows nothing about models, requests, HTTP or Ray.
"""
