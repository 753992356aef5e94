"""Break each part of a running server on purpose, and judge what its clients then get."""
