"""The pages in `docs/commands/`: what `pgtare COMMAND --help` prints, a page for each command.

The directive `command-help` reads the very objects that print the help, so a page and a man page
cannot differ from it. A group is shown with all its commands, each in a section of its own. The
pages that hold the directive are written when a build begins; they are not in the repository.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from pgtare import cli
from pgtare.cli import commands

PROGRAM = "pgtare"
_ABOUT = (
    "Each page is what `pgtare COMMAND --help` prints. `make docs` writes the same text as man "
    "pages to `docs/_build/man`; `man docs/_build/man/pgtare-weigh.1` opens one."
)
#: How help texts mark code.
_CODE = re.compile(r"`([^`]+)`")
#: A command alone in a paragraph, after the words that announce it.
_EXAMPLE = re.compile(r"(?:Examples?: )?`([^`]+)`$")


@functools.cache
def program() -> Any:
    """The whole command line, of an app of its own: the one that runs is left as it is."""
    app = copy.copy(cli.app)
    app.registered_commands, app.registered_groups = [], []
    commands.load_all(app)
    return typer.main.get_command(app)


def names() -> list[str]:
    """The commands that have a page of their own, in the order of the help."""
    return list(program().commands)


def summary(command: Any) -> str:
    """The first sentence of a command's help, on one line, without its stop."""
    first = " ".join((command.help or "").split("\n\n")[0].split())
    return first.replace("`", "").split(". ")[0].removesuffix(".")


def man_pages() -> list[tuple[str, str, str, str, int]]:
    """What Sphinx takes as `man_pages`: one for the program, one for each command."""
    found = [(f"commands/{PROGRAM}", PROGRAM, summary(program()), "", 1)]
    for name in names():
        page = f"{PROGRAM}-{name}"
        found.append((f"commands/{page}", page, summary(program().commands[name]), "", 1))
    return found


def pages() -> dict[str, str]:
    """The text of each page by its name in `docs/commands/`, without the suffix."""
    found = {PROGRAM: _page(""), **{f"{PROGRAM}-{name}": _page(name) for name in names()}}
    entries = "\n".join(found)
    return {"index": f"# Commands\n\n{_ABOUT}\n\n```{{toctree}}\n{entries}\n```\n", **found}


def _page(name: str) -> str:
    title, directive = f"# {PROGRAM} {name}".rstrip(), f"```{{command-help}} {name}".rstrip()
    return f"{title}\n\n{directive}\n```\n"


def write_pages(directory: Path) -> None:
    """Makes `directory` hold exactly these pages; what has not changed is left alone."""
    wanted = {directory / f"{name}.md": text for name, text in pages().items()}
    directory.mkdir(exist_ok=True)
    for path in set(directory.glob("*.md")) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


class CommandHelp(SphinxDirective):
    """```{command-help} weigh``` is the help of `pgtare weigh`; without a name, of `pgtare`."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        root = program()
        context = typer.Context(root, info_name=PROGRAM, **root.context_settings)
        if not self.arguments:
            return [*_help(root, context), *_list_of_commands(root)]
        name = self.arguments[0]
        if name not in root.commands:
            raise self.error(f"pgtare has no command {name!r}")
        command = root.commands[name]
        context = typer.Context(command, info_name=name, parent=context)
        if not hasattr(command, "commands"):
            return _help(command, context)
        return [*_help(command, context), *self._sections(command, context)]

    def _sections(self, group: Any, context: typer.Context) -> Iterator[nodes.Node]:
        for name, command in group.commands.items():
            below = typer.Context(command, info_name=name, parent=context)
            section = nodes.section(ids=[nodes.make_id(below.command_path)])
            section += nodes.title("", below.command_path)
            section += _help(command, below)
            self.state.document.note_implicit_target(section)
            yield section


def _help(command: Any, context: typer.Context) -> list[nodes.Node]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    found: list[nodes.Node] = [_block(usage)]
    found += _paragraphs(command.help or "")
    parameters = [p for p in command.get_params(context) if not getattr(p, "hidden", False)]
    found += _list("Arguments", [p for p in parameters if p.param_type_name == "argument"], context)
    panels: dict[str, list[Any]] = {}
    for option in parameters:
        if option.param_type_name == "option":
            panels.setdefault(option.rich_help_panel or "Options", []).append(option)
    for title, options in panels.items():
        found += _list(title, options, context)
    return [*found, *_paragraphs(command.epilog or "")]


def _list(title: str, parameters: list[Any], context: typer.Context) -> list[nodes.Node]:
    """Names and help of some parameters, below a line that says what they are."""
    entries = nodes.definition_list()
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record is None:
            continue
        name, text = record
        entry = nodes.definition_list_item()
        entry += nodes.term("", "", nodes.literal("", name))
        entry += nodes.definition("", nodes.paragraph("", "", *_inline(text)))
        entries += entry
    if not len(entries):
        return []
    return [nodes.rubric("", title), entries]


def _list_of_commands(root: Any) -> list[nodes.Node]:
    entries = nodes.definition_list()
    for name, command in root.commands.items():
        entry = nodes.definition_list_item()
        entry += nodes.term("", "", nodes.strong("", f"{PROGRAM}-{name}(1)"))
        entry += nodes.definition("", nodes.paragraph("", f"{summary(command)}."))
        entries += entry
    return [nodes.rubric("", "Commands"), entries]


def _paragraphs(text: str) -> list[nodes.Node]:
    found: list[nodes.Node] = []
    for part in text.split("\n\n"):
        line = " ".join(part.split())
        example = _EXAMPLE.fullmatch(line)
        if example:
            found.append(_block(f"$ {example[1]}"))
        elif line:
            found.append(nodes.paragraph("", "", *_inline(line)))
    return found


def _block(text: str) -> nodes.Node:
    return nodes.literal_block(text, text, language="text")


def _inline(text: str) -> list[nodes.Node]:
    """Words, and between backticks code."""
    parts = _CODE.split(" ".join(text.split()))
    return [
        nodes.literal("", part) if number % 2 else nodes.Text(part)
        for number, part in enumerate(parts)
        if part
    ]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command-help", CommandHelp)
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "commands"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
