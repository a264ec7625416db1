"""What the browser's checks of pages find: each fault is seen once it is there."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rig.browser import NARROW, Page, browsing, faults

GOOD = """<!doctype html><html lang="en"><title>page</title>
<body style="background:#fff;color:#333"><h1>A page</h1><p>Words.</p>{}</body></html>"""
NONE: set[str] = set()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("", NONE),
        ('<p style="color:#999">pale</p>', {"pale"}),
        ('<p style="color:#999;font-size:24px">large and still pale</p>', {"pale"}),
        ('<p style="color:#888;font-size:24px">large</p>', NONE),
        ('<div style="opacity:.5"><p>half seen</p></div>', {"pale"}),
        ('<div style="background:#222"><p>dark on dark</p></div>', {"pale"}),
        ('<p style="color:#999;display:none">hidden</p>', NONE),
        ('<svg><text y="20" style="fill:#ccc">pale</text></svg>', {"pale", "wordless"}),
        ('<div role="img" aria-label="a plot"><svg></svg></div>', NONE),
        ('<svg width="9" height="9"></svg>', {"wordless"}),
        ('<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">', {"wordless", "broken"}),
        ('<p style="width:500px">wider than a telephone</p>', {"wide"}),
        ('<p id="a">one</p><p id="a">other</p>', {"twice"}),
        ("<h1>another</h1>", {"plain"}),
    ],
)
def test_a_fault_of_a_page_is_found(
    browser: Page, tmp_path: Path, body: str, kinds: set[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text(GOOD.format(body), encoding="utf-8")
    browser.open(page.as_uri(), NARROW)
    assert {kind for kind, found in faults(browser).items() if found} == kinds
    assert browser.errors() == []
    assert browser.requests()[0] == page.as_uri()


def test_a_script_s_error_and_a_request_to_another_machine_are_found(
    browser: Page, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        # Bound, and nobody listens: a request comes to nothing.
        taken.bind(("127.0.0.1", 0))
        outside = f"http://127.0.0.1:{taken.getsockname()[1]}/x.js"
        page = tmp_path / "page.html"
        scripts = f'<script src="{outside}"></script><script>nowhere()</script>'
        page.write_text(GOOD.format(scripts), encoding="utf-8")
        browser.open(page.as_uri())
        assert outside in browser.requests()
        said = "\n".join(browser.errors())
        assert "nowhere is not defined" in said
        assert "ERR_CONNECTION_REFUSED" in said
        # What was wrong with one page isn't said of the next.
        page.write_text(GOOD.format(""), encoding="utf-8")
        browser.open(page.as_uri())
        assert (browser.errors(), browser.requests()) == ([], [page.as_uri()])
