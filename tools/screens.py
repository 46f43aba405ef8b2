"""Photograph the README and the site as a browser shows them, for docs/design/screens.md: `python tools/screens.py`.

`--report demo/report.html` adds the report of `fheat demo --out demo`. The README is rendered from its Markdown with a
plain style, as the pages of repositories show it; the site is built as `make docs` does it. All are photographed on a
laptop and on a phone, the top of the page. Chromium must be installed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import markdown
from playwright.sync_api import sync_playwright
from results import ROOT

IMAGES = ROOT / "docs" / "images"
SIZES = {"": {"width": 1366, "height": 900}, "-phone": {"width": 390, "height": 844}}
TALL = {"": {"width": 1280, "height": 1290}, "-phone": {"width": 390, "height": 1500}}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em; color: #1f2328; }
img { max-width: 100%; } pre { background: #f6f8fa; padding: 1em; overflow: auto; font-size: 85%; }
table { border-collapse: collapse; display: block; overflow: auto; }
td, th { border: 1px solid #d1d9e0; padding: 6px 13px; }
"""


def readme_page() -> str:
    """Return the README as an HTML page whose pictures lie where they do in the repository."""
    body = markdown.markdown((ROOT / "README.md").read_text(), extensions=["tables", "fenced_code"])
    return (
        f'<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<base href="{ROOT.as_uri()}/"><style>{STYLE}</style>{body}'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, help="page of a demo")
    report = parser.parse_args().report
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("screens.py needs Chromium: install the package chromium of the system")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as session:
        folder = Path(name)
        (folder / "readme.html").write_text(readme_page())
        command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder / "site")]
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
        browser = session.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        pages = [("readme", folder / "readme.html", SIZES), ("site", folder / "site" / "index.html", SIZES)]
        pages += [] if report is None else [("report", report.resolve(), TALL)]
        for page, file, sizes in pages:
            for suffix, size in sizes.items():
                view = browser.new_page(viewport=size)
                view.goto(file.as_uri())
                view.wait_for_timeout(500)
                view.screenshot(path=IMAGES / f"{page}{suffix}.png")
                view.close()
        browser.close()


if __name__ == "__main__":
    main()
