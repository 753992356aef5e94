"""Backends of the VectorIndex contract: an exact oracle, faiss flat, and faiss inverted lists."""
