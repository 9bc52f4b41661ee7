"""A real Chromium without a window, driven over two pipes: nothing to install but the browser."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BOUND_S = 30.0
KEYS = {"Enter": ("\r", 13), "Escape": ("", 27), "Tab": ("", 9), "ArrowDown": ("", 40)}


def find() -> str:
    """Chromium's path; without one the test is skipped, and in CI it fails."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        why = "no Chromium: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return found


class Browser:
    """One process; each page has cookies of its own."""

    def __init__(self, profile: Path) -> None:
        out_read, self._out = map(_high, os.pipe())
        self._in, in_write = map(_high, os.pipe())
        flags = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        flags += ["--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio"]
        flags += ["--disable-background-networking", "--disable-component-update"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")

        def take_pipes() -> None:
            os.dup2(out_read, 3)
            os.dup2(in_write, 4)

        self.process = subprocess.Popen(
            [find(), *flags, "about:blank"],
            preexec_fn=take_pipes,
            pass_fds=[3, 4],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(out_read)
        os.close(in_write)
        self._number = 0
        self._left = b""
        self._events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """What the browser answered; what it said meanwhile is kept for `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + BOUND_S
        while True:
            answer = self._next(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._events.append(answer)

    def events(self, session: str, method: str) -> list[dict[str, Any]]:
        """What a page has reported so far."""
        self.call("Browser.getVersion")
        found = [e for e in self._events if (e.get("sessionId"), e["method"]) == (session, method)]
        return [event["params"] for event in found]

    def page(self, width: int = 1280, height: int = 900) -> Page:
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        return Page(self, attached["sessionId"], target["targetId"], (width, height))

    def close(self) -> None:
        os.write(self._out, b'{"id":0,"method":"Browser.close"}\0')
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        os.close(self._out)
        os.close(self._in)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser is gone"
            self._left += piece
        line, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


class Page:
    def __init__(self, browser: Browser, session: str, target: str, size: tuple[int, int]) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self._forgiven: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(*size)

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def admit(self, base: str, cookie: str, word: str) -> None:
        """The page has the session of this cookie and CSRF token."""
        keep = f"localStorage.setItem('retinue.csrf', {json.dumps(word)})"
        script = f"if (location.origin === {json.dumps(base)}) {keep};"
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        name, _, value = cookie.partition("=")
        known = {"name": name, "value": value, "url": base, "httpOnly": True}
        self.call("Network.setCookie", **known, sameSite="Strict")

    def forgive(self, text: str) -> None:
        """What was to be expected is no complaint."""
        self._forgiven.append(text)

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, self._session, **params)

    def resize(self, width: int, height: int) -> None:
        narrow = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=narrow,
        )

    def dark(self, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def goto(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str, bound_s: float = 15.0) -> Any:
        """The first truthy value of an expression, looked at before each frame."""
        end = time.monotonic() + bound_s
        while True:
            try:
                value = self._watch(expression, 1.0)
            except AssertionError:  # the page it was asked of is gone; the next one answers
                value = None
            if value:
                return value
            seen = "document.body.innerText.slice(0, 1500)"
            assert time.monotonic() < end, f"{expression} never held; seen: {self.js(seen)}"

    def _watch(self, expression: str, seconds: float) -> Any:
        return self.js(
            "new Promise(done => {"
            f"const end = performance.now() + {seconds * 1000};"
            "(function look() { let value = null;"
            f"try {{ value = ({expression}); }} catch {{}}"
            "if (!value && performance.now() < end) setTimeout(look, 8);"
            "else done(value instanceof Node ? true : value); })(); })"
        )

    def sees(self, text: str) -> None:
        self.until(f"document.body.innerText.includes({json.dumps(text)})")

    def click(self, selector: str, text: str = "") -> None:
        """The first such element that says this was clicked, by a real mouse."""
        find = (
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".find(each => each.textContent.includes({json.dumps(text)}))"
        )
        place = self.until(
            f"(each => {{ if (!each) return null; each.scrollIntoView({{block: 'center'}});"
            "const box = each.getBoundingClientRect();"
            "return box.width && [box.x + box.width / 2, box.y + box.height / 2]; })"
            f"({find})"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            where = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **where)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        text, code = KEYS[key]
        known = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        if text:
            known["text"] = text
        self.call("Input.dispatchKeyEvent", type="keyDown", **known)
        self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    def complaints(self) -> list[str]:
        """Exceptions, errors in the console and refusals by the content security policy."""
        thrown = self._browser.events(self._session, "Runtime.exceptionThrown")
        logged = self._browser.events(self._session, "Log.entryAdded")
        said = [str(each["exceptionDetails"].get("exception") or each) for each in thrown]
        said += [e["entry"]["text"] for e in logged if e["entry"]["level"] == "error"]
        return [each for each in said if not any(text in each for text in self._forgiven)]

    def picture(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


def _high(descriptor: int) -> int:
    """The same under a number that the browser's own two do not overwrite."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


@contextmanager
def browsing() -> Iterator[Browser]:
    find()
    with tempfile.TemporaryDirectory(prefix="retinue-browser-") as folder:
        browser = Browser(Path(folder))
        try:
            yield browser
        finally:
            browser.close()
