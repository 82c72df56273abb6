"""What the documents show: blocks of code, commands and their output."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document, language):
    return [text for kind, text in BLOCK.findall(document.read_text()) if kind == language]


def sessions(document):
    """Commands and the output that the document shows for them."""
    found = []
    for text in blocks(document, "console"):
        for line in text.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return found
