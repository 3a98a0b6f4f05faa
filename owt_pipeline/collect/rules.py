"""Which submissions are wanted: the rules that judge one submission by itself. The score is judged by URL, later."""

from __future__ import annotations

from dataclasses import dataclass

from owt_pipeline.collect.blocklists import DomainSet, blocked_domains, blocked_extensions


@dataclass(frozen=True)
class Rules:
    """What is turned away; small, so that it travels to worker processes with each block.

    Attributes:
      over_18: keep submissions marked over 18.
      allow_subreddits: if any, submissions elsewhere are turned away; in lower case.
      deny_subreddits: submissions there are turned away; in lower case.
      deny_domains: domains that are turned away with their subdomains.
      blocked_domain_files: lists of such domains, each a path with a digest by which a changed one is read again.
      extensions: endings of paths, beside the built-in ones.
      built_in: whether the built-in lists of media hosts and endings apply.
    """

    over_18: bool = False
    allow_subreddits: frozenset[str] = frozenset()
    deny_subreddits: frozenset[str] = frozenset()
    deny_domains: tuple[str, ...] = ()
    blocked_domain_files: tuple[tuple[str, str], ...] = ()
    extensions: tuple[str, ...] = ()
    built_in: bool = True

    @property
    def domains(self) -> DomainSet:
        return blocked_domains(self.blocked_domain_files, self.built_in, self.deny_domains)

    @property
    def blocked_extensions(self) -> frozenset[str]:
        return blocked_extensions(self.extensions, self.built_in)

    def blocks_subreddit(self, subreddit: str | None) -> bool:
        name = (subreddit or "").lower()
        return name in self.deny_subreddits or bool(self.allow_subreddits and name not in self.allow_subreddits)
