"""Text that a page carries as data, for its script to show: where the markup itself has next to none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson
from lxml import etree

_MAX_DEPTH = 6
# What pages that were once XHTML put around a script's content.
_WRAPPING = re.compile(
    r"^\s*(?://|/\*)?\s*(?:<!\[CDATA\[|<!--)\s*(?:\*/)?|(?://|/\*)?\s*(?:\]\]>|-->)\s*(?:\*/)?\s*$|;\s*$"
)
_POSTS = ("DiscussionForumPosting", "Question", "Answer", "Comment")
_PARTS = ("@graph", "mainEntity", "acceptedAnswer", "suggestedAnswer", "comment", "itemListElement", "item")


def linked_data(root: etree._Element) -> list[Any]:
    """The page's JSON-LD (schema.org), parsed; scripts that are no JSON are passed over."""
    found = []
    for script in root.iter("script"):
        if script.text and (script.get("type") or "").strip().lower() == "application/ld+json":
            value = _parse(_WRAPPING.sub("", script.text))
            if value is not None:
                found.append(value)
    return found


def embedded_text(root: etree._Element, data: list[Any], write: Callable[[str], str], between: str) -> str:
    """The posts of a Discourse forum, or the longest article or thread in the linked data; else an empty string.

    Args:
      root: the page.
      data: its linked data.
      write: turns a piece of HTML into text.
      between: what is put between two posts.
    """
    posts = list(_discourse_posts(root))
    if posts:
        return between.join(map(write, posts))
    texts = ["\n".join(_texts(value, 0)) for value in data]
    text = max(texts, key=len, default="")
    return write(text) if "<" in text or "&" in text else text.strip()


def _discourse_posts(root: etree._Element) -> Iterator[str]:
    """The HTML of each post; Discourse preloads them as JSON within JSON in an attribute."""
    holder = root.find(".//*[@data-preloaded]")
    topics = _parse(holder.get("data-preloaded") or "") if holder is not None else None
    if not isinstance(topics, dict):
        return
    for key, value in topics.items():
        topic = _parse(value) if key.startswith("topic_") and isinstance(value, str) else None
        stream = topic.get("post_stream") if isinstance(topic, dict) else None
        posts = stream.get("posts") if isinstance(stream, dict) else None
        for post in posts if isinstance(posts, list) else []:
            if isinstance(post, dict) and isinstance(post.get("cooked"), str):
                yield post["cooked"]


def _texts(value: Any, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _texts(item, depth + 1)
    elif isinstance(value, dict):
        keys = ["articleBody", "reviewBody"] + (["text"] if str(value.get("@type")) in _POSTS else [])
        yield from (value[key] for key in keys if isinstance(value.get(key), str))
        for key in _PARTS:
            if key in value:
                yield from _texts(value[key], depth + 1)


def _parse(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text, strict=False)  # many pages have line breaks within strings
    except (ValueError, RecursionError):
        return None
