"""The exception tree of cache_store. A missing, expired or damaged value is never an error: it reads as `None`."""


class StoreError(Exception):
    """Something about the store that the caller has to know; every error of this package derives from it."""


class StoreUnavailableError(StoreError):
    """The store did not answer in time or cannot be reached; a lookup treats this as a miss."""


class StoreFullError(StoreError):
    """The store refused a write because its memory is used up; the value was not kept."""


class StoreRefusedError(StoreError):
    """The server refused a command: something else lies under the key, or a permission is missing."""
