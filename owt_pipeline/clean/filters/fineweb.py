"""FineWeb's own rules: Penedo et al., "The FineWeb Datasets", NeurIPS 2024 (arXiv 2406.17557), section 3.6.

The share of new lines a word is datatrove's, as FineWeb was made with it.
"""

from __future__ import annotations

import re

from owt_pipeline.clean.filters.gopher_repetition import repeated
from owt_pipeline.clean.filters.judgement import Judgement, Limit, by_limits
from owt_pipeline.clean.text_view import TextView

LIMITS = {
    "punctuated_lines": Limit(minimum=0.12),  # share of lines that end a sentence
    "short_lines": Limit(maximum=0.67),  # share of lines of SHORT_LINE characters or fewer
    "repeated_line_chars": Limit(maximum=0.01),  # share of characters, new lines left out
    "new_lines": Limit(maximum=0.3),  # a word
}
SHORT_LINE = 30

# Marks that end a sentence, in any script: Unicode's property Sentence_Terminal within the basic plane.
_TERMINAL = re.compile(
    "[!.?\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b\u1362\u1367\u1368"
    "\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f"
    "\u1c3b\u1c3c\u1c7e\u1c7f\u2024\u203c\u203d\u2047-\u2049\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u3002\ua4ff\ua60e\ua60f"
    "\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe12\ufe15\ufe16\ufe52\ufe56"
    "\ufe57\uff01\uff0e\uff1f\uff61]"
)


def fineweb(view: TextView) -> Judgement:
    """Whether the text's lines are those of prose, and not of a list."""
    lines = [line for line in view.lines if line and not line.isspace()]
    n_lines, new_lines = max(1, len(lines)), view.text.count("\n")
    signals = {
        "punctuated_lines": sum(_TERMINAL.match(line[-1]) is not None for line in lines) / n_lines,
        "short_lines": sum(len(line) <= SHORT_LINE for line in lines) / n_lines,
        "repeated_line_chars": repeated(lines)[1] / max(1, len(view.text) - new_lines),
        "new_lines": new_lines / max(1, len(view.words)),
    }
    return by_limits(signals, LIMITS)
