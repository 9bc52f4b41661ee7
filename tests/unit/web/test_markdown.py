"""Formatted answers on the page: a subagent wrote them, and they may not stop the page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

STATIC = Path(__file__).resolve().parents[3] / "src" / "retinue" / "web" / "static"
BOUND_S = 60
LONG = 99_000
MOST_MS = 5000
# Prints the elements of an answer, their attributes left out.
SCRIPT = """
globalThis.location = { pathname: '/' };
const { Formatted } = await import(process.argv[1]);
const text = JSON.parse(await new Response(process.stdin).text());
function show(node) {
  if (Array.isArray(node)) return node.map(show).join('');
  if (node === null || typeof node !== 'object') return String(node ?? '');
  const within = show(node.props.children);
  return typeof node.type === 'string' ? `<${node.type}>${within}</${node.type}>` : within;
}
const began = performance.now();
const shown = show(Formatted({ text }));
process.stdout.write(JSON.stringify({ shown, ms: performance.now() - began }));
"""


def format_answer(text: str) -> dict[str, Any]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    done = subprocess.run(
        [node, "--input-type=module", "-e", SCRIPT, str(STATIC / "markdown.js")],
        input=json.dumps(text),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_marks_become_elements() -> None:
    text = "a *b* **c `d`** [e](https://f.example/g)\n\n> h\n- i\n  - j"
    assert format_answer(text)["shown"] == (
        "<div><p>a <em>b</em> <strong>c <code>d</code></strong> <a>e</a></p>"
        "<blockquote><p>h</p></blockquote><ul><li>i<ul><li>j</li></ul></li></ul></div>"
    )


@pytest.mark.parametrize(
    "text",
    ["*a* ", "**a ", "` ", "> ", "*[", "[", "__a", "*_"],
    ids=["emphasis", "strong", "code", "quotes", "open", "brackets", "underscores", "mixed"],
)
def test_no_answer_stops_the_page(text: str) -> None:
    found = format_answer(text * (LONG // len(text)))
    assert found["ms"] < MOST_MS and len(found["shown"]) > LONG / 4


def test_code_with_quotes_that_do_not_end_is_shown_in_time() -> None:
    assert format_answer("```\n" + '"\\' * (LONG // 2))["ms"] < MOST_MS
