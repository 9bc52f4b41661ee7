"""Safe text: hidden characters made visible, lone surrogates replaced, lines shortened.

Texts of a child reach agents and people. Control characters can drive a terminal, direction
marks reorder a line, and tag characters or variation selectors can carry text that only a
model reads.
"""

from __future__ import annotations

import re

SUMMARY_LIMIT = 120
MARK = "\ufffd"
_SURROGATES = re.compile("[\ud800-\udfff]")
# Control characters except tab and newline, line and paragraph separators, lone surrogates and
# annotation marks.
_ACTIVE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufff9-\ufffb"
# Unicode's Default_Ignorable_Code_Point: none of these is drawn.
_IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_RUN = re.compile(f"[{_ACTIVE}{_IGNORABLE}]+")
# Joiners and emoji selectors, which scripts and emoji need one at a time after a visible
# character. A longer run could encode hidden text.
_JOINING = frozenset({"\u200c", "\u200d", "\ufe0e", "\ufe0f", "\ufe0f\u200d"})
_KEYCAPS = frozenset("0123456789#*")


def reveal_hidden(text: str) -> str:
    """Return the text with each hidden character replaced by U+FFFD.

    A single joiner or emoji selector after a character that can take it is kept.
    """
    return _RUN.sub(_replace_run, text)


def _replace_run(found: re.Match[str]) -> str:
    run = found[0]
    start = found.start()
    if run in _JOINING and start:
        before = found.string[start - 1]
        if before > "\x7f" or (run == "\ufe0f" and before in _KEYCAPS):
            return run
    return MARK * len(run)


def clean_text(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded as UTF-8."""
    return _SURROGATES.sub("\ufffd", text)


def shorten(text: str, limit: int = SUMMARY_LIMIT) -> str:
    """Return the text as one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
