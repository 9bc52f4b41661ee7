"""Nodes on the page, in a real browser: the panel, and the node of each subagent."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from e2e.test_page import texts
from support.browser import Browser
from support.cluster import TASK, Lab
from support.page import served

pytest.importorskip("nats")


def test_nodes_are_listed_and_each_subagent_names_its_own(tmp_path: Path, browser: Browser) -> None:
    lab = Lab(tmp_path)
    try:
        lab.open("orchestrator: {coordination: {subagent_runtime_mode: inherited}}")
        lab.join("w1", "--labels", "gpu")
        lab.spawn("far", "echo done", on="gpu")
        lab.spawn("near", "echo done", on="")
        lab.wait_closed("far", "near")
        with served(lab.root) as ui:
            ui.enter()
            page = browser.page()
            page.admit(ui.base, ui.cookie, ui.word)
            page.goto(ui.base)
            page.until("document.querySelector('.nodes li')")
            (shown,) = texts(page, ".nodes li")
            assert shown.startswith("w1") and "up" in shown and "gpu" in shown
            page.goto(f"{ui.base}/tasks/{TASK}")
            page.until("document.querySelectorAll('.sub-row .node-mark').length === 1")
            page.until("document.querySelectorAll('.lane .node-mark').length === 1")
            assert texts(page, ".lane .node-mark") == ["w1"]
            spans = page.js("[...document.querySelectorAll('.track .span')].map(s => s.title)")
            assert any(str(title).endswith("on w1") for title in spans)
            os.kill(lab.find_hub_process(), signal.SIGKILL)
            page.goto(ui.base)
            page.until("document.querySelector('.nodes li')?.textContent.includes('(old)')", 30)
            assert "The hub does not answer" in page.js("document.body.textContent")
            assert not page.complaints()
            page.close()
    finally:
        lab.close()
