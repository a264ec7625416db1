"""The documentation site in a browser: nothing broken, nothing fetched from outside,
readable."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.rig.browser import VIEWS, WIDE, Page, browsing, faults
from tests.rig.waiting import until
from tests.site.conftest import SITE

PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
LOOKED_AT = {
    "index.html",
    "docs/metrics.html",
    "docs/protocol.html",
    "reference/commands.html",
}
"""Pages whose pictures are taken, for a person."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(
        self,
        format: str,  # noqa: A002 -- the parent's name
        *args: object,
    ) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("browser")) as page:
        yield page


def test_every_document_is_a_page() -> None:
    documents = SITE.parent / "pages"
    written = {
        str(path.relative_to(documents).with_suffix(""))
        for path in documents.rglob("*.md")
    }
    assert len(written) > 50
    found = {page.removesuffix(".html") for page in PAGES} - {"404"}
    homes = {name.replace("README", "index") for name in written}
    assert homes - found == set()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_well_and_asks_nobody_else(
    site: str, browser: Page, tmp_path: Path, name: str
) -> None:
    for view, size, scheme in VIEWS[:3]:
        browser.open(site + name, size, scheme)
        # As the reader's system prefers it.
        shown = browser.run("document.body.dataset.mdColorScheme")
        assert shown == {"light": "default", "dark": "slate"}[scheme]
        found = {kind: each for kind, each in faults(browser).items() if each}
        assert (view, found, browser.errors()) == (view, {}, [])
        outside = [
            each for each in browser.requests() if not each.startswith((site, "data:"))
        ]
        assert outside == []
        if name in LOOKED_AT:
            browser.picture(tmp_path / f"site-{name.replace('/', '-')}-{view}.png")


def test_the_search_finds_a_word_without_a_server_of_its_own(
    site: str, browser: Page
) -> None:
    browser.open(f"{site}index.html?q=dealer", WIDE)
    results = "document.querySelectorAll('.md-search-result__item').length"
    until(lambda: browser.run(results), "results")
    assert browser.errors() == []
