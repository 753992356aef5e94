"""Backends of the LatentStore contract, and the one byte format that they share."""
