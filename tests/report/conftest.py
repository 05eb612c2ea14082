"""A real browser, driven over its own pipe with the standard library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

PATIENCE = 60.0


class Page:
    """One page of the browser, and whatever it complained about or asked the network for."""

    def __init__(self, browser, session):
        self._browser, self._session = browser, session
        self.complaints: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        return self._browser.call(method, parameters, session=self._session, heard=self._heard)

    def open(self, path, fragment=""):
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        self.wait("document.readyState === 'complete'")

    def run(self, expression):
        """The value of an expression of JavaScript in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, condition):
        ends = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < ends, f"in vain: {condition}"
            time.sleep(0.02)

    def look_like(self, *, width=1280, height=900, scheme="light", media=""):
        """Set the window and what the reader prefers."""
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=phone)  # fmt: skip
        wish = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[wish])

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def screenshot(self, path, *, whole=False):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def _heard(self, event):
        about = event.get("params", {})
        match event["method"]:
            case "Runtime.exceptionThrown":
                self.complaints.append(str(about["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(about["args"]))
            case "Log.entryAdded":
                self.complaints.append(about["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])


class Browser:
    """A headless Chromium."""

    def __init__(self, program, profile):
        # The browser reads commands from file 3 and answers on file 4.
        swap = 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null'
        flags = ["--headless=new", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                 "--remote-debugging-pipe", f"--user-data-dir={profile}"]  # fmt: skip
        if os.getuid() == 0:
            flags.append("--no-sandbox")
        self._process = subprocess.Popen(
            ["sh", "-c", swap, "sh", program, *flags, "about:blank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._number, self._left = 0, b""

    def page(self):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        return Page(self, attached["sessionId"])

    def call(self, method, parameters, *, session=None, heard=None):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            if heard and "method" in answer and answer.get("sessionId") == session:
                heard(answer)

    def close(self):
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _read(self):
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
            part = os.read(self._process.stdout.fileno(), 1 << 20) if ready else b""
            assert part, "the browser does not answer"
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A browser, or a skip that says why."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium found: the page is not opened in a browser")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
