"""Backends of the EntryStore contract: what is known about each cached source, from which an index is rebuilt."""
