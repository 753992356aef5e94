"""Speculative Sampling: sample far, commit fine, and replace only the suffix when the viewer's prompt changes."""
