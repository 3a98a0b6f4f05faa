"""Rebuild OpenWebText: from Reddit submissions to token shards, with a ledger in which no URL is lost."""

__version__ = "0.1.0"
