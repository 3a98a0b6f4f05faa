"""Short lines that are no text: the labels of buttons and links, and headings over what is not the article."""

from __future__ import annotations

import re

_SITES = "facebook|twitter|x|linkedin|pinterest|whatsapp|email|reddit|instagram|social media|your friends"
_LABELS = [
    # sharing
    rf"(?:please )?share(?: (?:this|on|via|to|it|article|post|the article))?"
    rf"(?: (?:on|via|article|post|page|story|with))?(?: (?:{_SITES}))?",
    rf"tweet|pin(?: it)?|print(?: this page| article)?|e-?mail(?: this)?|copy link|link copied|{_SITES}",
    "follow(?: us)?(?: on.{0,30})?|like|likes",
    rf"(?:{_SITES}|youtube)(?:\W+(?:{_SITES}|youtube|print|copy link)){{1,5}}",
    # accounts
    r"log ?in(?: or (?:register|sign ?up|join))?|sign ?in(?: or (?:join|register|sign up))?|log ?out|my account",
    r"you must (?:log in|be logged in)(?: or register)? to .{0,30}",
    r"sign ?up(?: for free(?: trial)?| now)?|register(?: now)?|subscribe(?: now| here| today)?|create (?:an )?account",
    # advertisements, and what parts an article from its rest
    r"advertis(?:e)?ment|ads?|sponsored(?: content)?|promoted",
    r"article continues below.*|continue reading.*|story continues below.*",
    r"skip to.*|back to top|top|go to top|loading(?:\.\.\.|…)?|please wait.*",
    # buttons
    r"(?:read|learn|show|view|see|find out|discover|load|shop|explore) (?:more|all|less|now|full (?:article|story|bio))"
    r"(?: about.{0,30}| from.{0,30})?",
    r"more|more options|click (?:here|to expand)(?:\.\.\.|…)?|(?:toggle|show|hide) caption|expand|collapse",
    r"close|menu|search|filter|sort by|compare|quick view",
    r"next|previous|prev|next (?:post|article|page)|previous (?:post|article|page)",
    r"add (?:to (?:cart|bag|basket|wishlist|compare)|a comment)|(?:buy|shop|book|order) now",
    r"check (?:price|availability).*|get (?:in touch|started|a quote|the app)|request (?:a )?(?:demo|quote)",
    r"contact us(?: today)?|call (?:us|now).{0,30}",
    # comments
    r"leave a (?:reply|comment|review)|post a comment|comments?(?: \(\d+\))?|\d+ comments?|no comments(?: yet)?",
    r"reply|replies|quote|report|join the (?:discussion|conversation)",
    # headings that lost what they headed
    r"tags?|categories|filed under|posted (?:in|by|on)|written by|by",
    r"related(?: (?:posts?|articles?|stories|topics|content|reading|reads|news|products|searches))?",
    r"you (?:may|might) also (?:like|enjoy)|recommended(?: for you)?|trending(?: now)?|most (?:popular|read)",
    r"popular(?: posts)?|recent posts|latest (?:posts|news|articles|stories)",
    r"table of contents|contents|in this article|on this page",
    # the page's foot, credits, bare numbers
    r"©.*|copyright.*|all rights reserved.*|privacy policy|cookie (?:policy|settings)",
    r"terms (?:of (?:service|use)|and conditions|& conditions)",
    r"\d+|(?:photo(?: credit)?|image(?: credit| source)?|credit):.*",
]
_LABEL = re.compile(rf"\W*(?:{'|'.join(_LABELS)})\W*", re.IGNORECASE)
_LONGEST_LABEL = 59

_AFTERWARDS = re.compile(
    r"\W*(?:related|you (?:may|might|'ll|will) (?:also )?(?:like|love|enjoy|be interested)"
    r"|more (?:from|on|stories|articles|posts|news|like this|in)\b|recommended|read (?:next|more|also)|also read"
    r"|see also|keep reading|further reading|trending|most (?:popular|read)|popular|(?:our )?latest|recent|comments?\b"
    r"|\d+ (?:comments|responses|thoughts|replies)|leave a|add a comment|join the|post a|about the author"
    r"|about (?:me|us)\b|author|written by|meet the|tags|share|newsletter|subscribe|sign up"
    r"|stay (?:connected|informed|updated|in touch)|follow|get in touch|contact us|connect with|editor'?s picks?"
    r"|what to read|up next|don'?t miss|explore more|discover more|other (?:articles|posts|stories|news)|similar"
    r"|people also|featured|filed under|categories|advertisement|inbound links|resources|log ?in|quick links"
    r"|navigation)",
    re.IGNORECASE,
)
_LONGEST_HEADING = 79


def is_label(text: str) -> bool:
    """Whether a line is the label of a button or the like."""
    return len(text) <= _LONGEST_LABEL and _LABEL.fullmatch(text) is not None


def heads_afterwards(text: str) -> bool:
    """Whether a heading is of a part that follows an article without belonging to it."""
    return len(text) <= _LONGEST_HEADING and _AFTERWARDS.match(text) is not None
