"""Errors that several modules raise."""

from __future__ import annotations


class ShardError(ValueError):
    """Token shards that are missing, damaged, or of a kind this program does not know."""


class SignatureError(ValueError):
    """A model that is unsigned, altered, or signed with another key."""
