"""A page in a headless Chromium, spoken to through the pipe of its DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
# The browser listens on descriptor 3 and answers on 4.
_START = (
    "import fcntl, os, sys; "
    "pipes = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]; "
    "[os.dup2(pipe, 3 + index) for index, pipe in enumerate(pipes)]; "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
_PATIENCE = 30


class Page:
    """A tab; `events` has what it told unasked, such as requests and what was written to the console."""

    def __init__(self, commands, answers):
        self.commands, self.answers, self.rest = commands, answers, b""
        self.number, self.session, self.events = 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        return self._until(lambda answer: answer.get("id") == self.number)["result"]

    def open(self, path, width, height=844, dark=False):
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        self._until(lambda answer: answer.get("method") == "Page.loadEventFired")

    def value(self, expression):
        """Return what a JavaScript expression is in the page, as plain data."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path, whole=True):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _until(self, wanted):
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if b"\0" not in self.rest:
                if select.select([self.answers], [], [], 1)[0]:
                    part = os.read(self.answers, 1 << 20)
                    assert part, "the browser is gone"
                    self.rest += part
                continue
            text, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(text)
            if "id" not in answer:
                self.events.append(answer)
            assert "error" not in answer, answer
            if wanted(answer):
                return answer
        raise TimeoutError("the browser does not answer")


@contextmanager
def chromium(profile):
    """Start a browser with a new, empty profile folder, yield its `Page`, and end it."""
    (hears, commands), (answers, speaks) = os.pipe(), os.pipe()
    command = [sys.executable, "-c", _START, str(hears), str(speaks), CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
    browser = subprocess.Popen(command, pass_fds=(hears, speaks), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(hears)
    os.close(speaks)
    try:
        page = Page(commands, answers)
        yield page
        page.session = None
        page.call("Browser.close")
        browser.wait(_PATIENCE)
    finally:
        browser.kill()
        browser.wait()
        os.close(commands)
        os.close(answers)
