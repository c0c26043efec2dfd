"""A real browser for tests of pages: Chromium as the distribution packages it, driven by playwright."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ANSWER_MS = 60_000
"""What a loaded machine may take to show a page."""
COLUMNS = "namespace-workflow-table-columns"
"""Where the Web UI keeps, in the browser, which columns its list of workflows has."""


def chromium() -> str:
    """The browser; without one the test is skipped (with CI=true `.ci/run` installs it)."""
    found = next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)
    if found is None:
        pytest.skip("no browser: apt-get install chromium")
    return found


@asynccontextmanager
async def web_ui(columns: list[str], *, width: int = 1200, height: int = 750) -> AsyncIterator[Page]:
    """A fresh browser whose list of workflows has these columns in namespace `default`; ended with the block."""
    path = chromium()
    async with async_playwright() as driver:
        # Root has no use of the sandbox, and a container no graphics.
        browser = await driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            context = await browser.new_context(viewport={"width": width, "height": height}, timezone_id="UTC")
            context.set_default_timeout(ANSWER_MS)
            shown = json.dumps(json.dumps({"default": [{"label": name} for name in columns]}))
            await context.add_init_script(f"localStorage.setItem({json.dumps(COLUMNS)}, {shown})")
            yield await context.new_page()
        finally:
            await browser.close()


def screenshots(default: Path) -> Path:
    """Where screenshots go: to the folder that AFFIDAVIT_SCREENSHOTS names, else to a test's own."""
    folder = Path(os.environ.get("AFFIDAVIT_SCREENSHOTS") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
