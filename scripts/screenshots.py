"""Takes pictures of pages of a running dashboard, in both themes and narrow.

    python scripts/screenshots.py FOLDER http://127.0.0.1:8000/login/… / /jobs /jobs/7

The second argument is the link that `duetime serve` prints. It works once: name all pages in one
call.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

from tests.chromium import find_chromium

LOOKS = {
    "light": (1360, 900, "light"),
    "dark": (1360, 900, "dark"),
    "narrow": (380, 800, "light"),
}


def main() -> None:
    folder, address, *paths = sys.argv[1:]
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    start = urlsplit(address)
    base = f"{start.scheme}://{start.netloc}"
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            where / "profile", executable_path=find_chromium(), args=["--no-sandbox"]
        )
        page = context.new_page()
        page.goto(address)
        for path in paths or ["/"]:
            name = path.strip("/").replace("/", "-").replace("?", "-") or "now"
            for look, (width, height, theme) in LOOKS.items():
                page.set_viewport_size({"width": width, "height": height})
                page.goto(base + path)
                page.evaluate(f"localStorage.setItem('duetime-theme', '{theme}')")
                page.reload()
                page.wait_for_timeout(400)
                file = where / f"{name}-{look}.png"
                page.screenshot(path=file, full_page=True)
                print(file)
        context.close()


if __name__ == "__main__":
    main()
