"""A page in headless Chromium, spoken to over a pipe: no driver, no package. For tests of what people look at.

with Browser() as browser:
    page = browser.open(path, width=420, dark=True)
    page.problems()          # sentences: what overflows, which text is too faint
    page.screenshot(target)
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEAST_CONTRAST = 4.5  # WCAG 2.2, 1.4.3, level AA
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

# Runs in the page. Boxes that scroll by themselves may be wider inside; text counts with the colour behind it.
_PROBLEMS = """
(least) => {
  const found = [], view = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > view)
    found.push(`the page is ${document.documentElement.scrollWidth} px wide on a screen of ${view}`);
  const scrolls = one => one &&
    (/auto|scroll|hidden/.test(getComputedStyle(one).overflowX) || scrolls(one.parentElement));
  const name = one => [one.tagName.toLowerCase(), ...one.classList].join(".");
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = text => {  // any notation a stylesheet knows, as the browser paints it
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => a * c + (1 - a) * under[i]);
  const behind = one => {
    if (!one) return rgba(getComputedStyle(document.documentElement).colorScheme.includes("dark")
      && matchMedia("(prefers-color-scheme: dark)").matches ? "#121212" : "#fff").slice(0, 3);
    const own = rgba(getComputedStyle(one).backgroundColor);
    return own[3] >= 1 ? own.slice(0, 3) : over(own, behind(one.parentElement));
  };
  const light = c => c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const seen = new Set();
  for (const one of document.querySelectorAll("body *")) {
    const box = one.getBoundingClientRect();
    if (!box.width || !box.height || getComputedStyle(one).visibility === "hidden") continue;
    if (box.right > view + 1 && getComputedStyle(one).position !== "absolute" && !scrolls(one.parentElement))
      found.push(`${name(one)} ends at ${Math.round(box.right)} px, the screen at ${view}`);
    const text = [...one.childNodes].filter(n => n.nodeType === 3 && n.data.trim()).map(n => n.data.trim())[0];
    if (!text) continue;
    const under = behind(one), ink = over(rgba(getComputedStyle(one).color), under);
    const [a, b] = [light(ink), light(under)].sort((x, y) => y - x), contrast = (a + 0.05) / (b + 0.05);
    const said = `${name(one)} has a contrast of ${contrast.toFixed(1)}: "${text.slice(0, 30)}"`;
    if (contrast < least && !seen.has(said)) { seen.add(said); found.push(said); }
  }
  return found;
}
"""


def installed() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    def __enter__(self) -> "Browser":
        program = installed()
        if program is None:
            raise FileNotFoundError("no Chromium is installed: apt install chromium, or put one on the PATH")
        self._profile = tempfile.TemporaryDirectory()
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]

        def wires() -> None:  # Chromium reads commands from 3 and answers on 4
            safe_read, safe_write = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, to_write))
            os.dup2(safe_read, 3)
            os.dup2(safe_write, 4)

        self._process = subprocess.Popen(
            [program, *flags, f"--user-data-dir={self._profile.name}", "about:blank"],
            preexec_fn=wires, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._number, self._left = 0, b""
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def open(self, address: Path | str, width: int, dark: bool = False, height: int = 900) -> "Page":
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        page = Page(self, self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])
        page.ask(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.ask("Emulation.setEmulatedMedia", {"features": [scheme]})
        page.ask("Page.enable")
        url = address.resolve().as_uri() if isinstance(address, Path) else address
        page.ask("Page.navigate", {"url": url})
        self._wait_for("Page.loadEventFired", page.session)
        return page

    def ask(self, method: str, about: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        self._number += 1
        asked = {"id": self._number, "method": method, "params": about or {}}
        asked |= {"sessionId": session} if session else {}
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _wait_for(self, event: str, session: str) -> None:
        while (told := self._read()).get("method") != event or told.get("sessionId") != session:
            pass

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            got = os.read(self._from, 1 << 20)
            if not got:
                raise RuntimeError("the browser ended")
            self._left += got
        message, self._left = self._left.split(b"\0", 1)
        return json.loads(message)


@dataclass
class Page:
    browser: Browser
    session: str

    def ask(self, method: str, about: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.browser.ask(method, about, self.session)

    def run(self, script: str) -> Any:
        answer = self.ask("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"].get("exception", {}).get("description")))
        return answer["result"].get("value")

    def problems(self) -> list[str]:
        return self.run(f"({_PROBLEMS})({LEAST_CONTRAST})")

    def screenshot(self, target: Path, whole: bool = True) -> None:
        drawn = self.ask(
            "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole, **self._clip(whole)}
        )
        target.write_bytes(base64.b64decode(drawn["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
