"""The documentation site, from this repository alone: `make site`.

    python docs/site/build.py

Copies the documents as they lie, with the pictures and files that they link to, writes
the references of the command line and of the SDK from the code, and calls MkDocs, for
which a warning is an error: no link leads nowhere, and no page is left out.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from precad import client
from precad.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "pages"
DOCUMENTS = (
    "README.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "examples/README.md",
)
TABLES = sorted((ROOT / "benchmarks/results/papers").glob("*.md"))
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def copy_documents() -> None:
    """All documents, and what of this repository they link to."""
    documents = [ROOT / name for name in DOCUMENTS]
    documents += [*sorted((ROOT / "docs").rglob("*.md")), *TABLES]
    for document in documents:
        _copy(document)
        for target in LINK.findall(document.read_text(encoding="utf-8")):
            linked = (document.parent / target).resolve()
            if "://" not in target and linked.is_file() and linked not in documents:
                _copy(linked)


def _copy(file: Path) -> None:
    to = PAGES / file.relative_to(ROOT)
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)


def commands(command: click.Command, context: click.Context) -> Iterator[str]:
    """Each command's own help, as it prints it."""
    text = command.get_help(context)
    yield f"## {context.command_path}\n\n```text\n{text}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, click.Context(inner, context, name))


def write_references() -> None:
    """Of the command line, and of what `precad.client` shows."""
    folder = PAGES / "reference"
    folder.mkdir(parents=True)
    head = "# Command line\n\nWhat each command says of itself with `--help`.\n\n"
    context = click.Context(
        app, info_name="precad", show_default=True, max_content_width=90
    )
    (folder / "commands.md").write_text(
        head + "\n".join(commands(app, context)), encoding="utf-8"
    )
    shown = [getattr(client, name) for name in sorted(client.__all__)]
    parts = [f"::: {each.__module__}.{each.__qualname__}\n" for each in shown]
    (folder / "sdk.md").write_text(
        "# SDK\n\n`from precad.client import …`, for data owners.\n\n"
        + "\n".join(parts),
        encoding="utf-8",
    )


def write_configuration() -> Path:
    """With every decision and every page of measured tables in the navigation."""
    text = (ROOT / "docs/site/mkdocs.yml").read_text(encoding="utf-8")
    decisions = sorted((ROOT / "docs/decisions").glob("*.md"))
    for word, pages in (("DECISIONS", decisions), ("TABLES", TABLES)):
        listed = "".join(f"\n          - {path.relative_to(ROOT)}" for path in pages)
        text = text.replace(f" {word}", listed)
    path = PAGES.parent / "mkdocs.yml"
    path.write_text(text.replace("../build/", ""), encoding="utf-8")
    return path


def name_buttons() -> None:
    """The theme's buttons for menu and search are pictures alone: say what they are."""
    for page in (PAGES.parent / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for target, name in (("__drawer", "Menu"), ("__search", "Search")):
            text = text.replace(
                f'-icon" for="{target}"', f'-icon" for="{target}" aria-label="{name}"'
            )
        page.write_text(text, encoding="utf-8")


def main() -> None:
    """Build it."""
    os.environ["COLUMNS"] = "90"
    shutil.rmtree(PAGES, ignore_errors=True)
    copy_documents()
    shutil.copyfile(ROOT / "docs/site/extra.css", PAGES / "extra.css")
    write_references()
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "-f",
        str(write_configuration()),
    ]
    built = subprocess.run(
        command, cwd=ROOT, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    if built.returncode:
        sys.exit(built.returncode)
    name_buttons()
    click.echo(PAGES.parent / "site" / "index.html")


if __name__ == "__main__":
    main()
