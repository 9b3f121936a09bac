"""A real browser for the pages, where one can be had."""

from __future__ import annotations

import shutil

import pytest

from tests.rendering.as_report import as_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: the browser tests were left out")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield found
        found.close()


@pytest.fixture
def open_tab(browser):
    """Opens a file in a tab; with it go what its console and dialogs said, and what it asked the network for."""
    contexts = []

    def open_file(path, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        tab, problems, requests = context.new_page(), [], []
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("dialog", lambda dialog: (problems.append("a dialog"), dialog.dismiss()))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(path.as_uri())
        return tab, problems, requests

    yield open_file
    for context in contexts:
        context.close()


@pytest.fixture
def opened(open_tab, tmp_path):
    def open_page(report, **options):
        as_report(report).to_html(tmp_path / "page.html")
        tab, problems, requests = open_tab(tmp_path / "page.html", **options)
        # The page may ask for itself and for pictures it carries; anything else is a problem, whenever it is asked for.
        tab.on("request", lambda request: request.url.startswith(("file:", "data:")) or problems.append(request.url))
        problems += [url for url in requests if not url.startswith(("file:", "data:"))]
        return tab, problems

    return open_page
