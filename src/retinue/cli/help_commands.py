"""The commands `retinue docs` and `retinue completion`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from retinue.cli import render
from retinue.cli.options import CliCommand
from retinue.cli.steward_session import CliSession
from retinue.core.errors import NotFound

PACKAGE = Path(__file__).parent.parent
# As a newcomer reads them; other pages of the top folder follow, then the sections.
FIRST = ("index", "tutorial", "how-to/install")
SECTIONS = ("how-to", "reference", "explanation", "design")


@click.command(cls=CliCommand, example="retinue docs\nretinue docs how-to/plans")
@click.argument("page", metavar="[PAGE]", required=False, default="")
@click.pass_obj
def docs(session: CliSession, page: str) -> None:
    """Read the documentation of this version.

    Without a page, lists all pages with their titles. A page can be named by its last part.
    """
    folder = find_docs()
    pages = {str(path.relative_to(folder).with_suffix("")): path for path in folder.rglob("*.md")}
    if not page:
        rows = [
            {"page": name, "title": _read_title(path), "path": str(path)}
            for name, path in sorted(pages.items(), key=lambda each: _order_page(each[0]))
        ]
        session.answer(rows, _list_pages)
        return
    wanted = page.removesuffix(".md")
    found = [name for name in pages if name == wanted or name.endswith(f"/{wanted}")]
    if len(found) != 1:
        raise NotFound(
            f"there is no page {render.to_one_line(page)}"
            if not found
            else f"{page} is the name of {len(found)} pages: {', '.join(sorted(found))}",
            code="unknown_page",
            hint="'retinue docs' lists all pages",
        )
    text = pages[found[0]].read_text("utf-8")
    if session.json:
        session.answer({"page": found[0], "path": str(pages[found[0]]), "text": text}, str)
    elif sys.stdout.isatty():
        click.echo_via_pager(text)
    else:
        render.print_line(text.rstrip("\n"))


def _order_page(name: str) -> tuple[int, int, str]:
    section, _, _ = name.rpartition("/")
    first = FIRST.index(name) if name in FIRST else len(FIRST)
    return first, SECTIONS.index(section) if section in SECTIONS else -1, name


def find_docs() -> Path:
    """Return the folder of the documentation: inside the package, or beside it in a checkout.

    Raises:
        NotFound: the package was installed without it.
    """
    for folder in (PACKAGE / "docs", PACKAGE.parent.parent / "docs"):
        if (folder / "index.md").is_file():
            return folder
    raise NotFound(
        "the documentation is not installed",
        code="unknown_page",
        hint="install retinue again: its wheel contains the documentation",
    )


def _read_title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().strip("# \n")


def _list_pages(rows: list[dict[str, str]]) -> str:
    width = max(len(row["page"]) for row in rows)
    return "\n".join(f"{row['page']:<{width}}  {row['title']}" for row in rows)


SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=CliCommand,
    example="retinue completion bash >> ~/.bashrc\nretinue completion fish | source",
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and ids in a shell.

    Completion of ids starts no steward.
    """
    from retinue.cli.command_table import commands

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    render.print_line(kind(commands, {}, "retinue", "_RETINUE_COMPLETE").source().rstrip("\n"))
