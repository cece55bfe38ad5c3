"""How `make docs` builds the documentation: pages for a browser, and man pages."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import command_pages

import pgtare

project = "pgtare"
author = "pgtare"
project_copyright = "the authors of pgtare"
version = release = pgtare.__version__

extensions = ["myst_parser", "command_pages", "generated_tables"]
exclude_patterns = ["_build", "_ext"]
source_suffix = {".md": "markdown"}
#: Every link within the pages must lead somewhere, anchors of headings included.
nitpicky = True
myst_heading_anchors = 4
#: Pages show µs, − and quotes as they were printed.
smartquotes = False
#: Listings are mostly output of terminals.
highlight_language = "text"

html_theme = "furo"
html_title = f"pgtare {release}"
html_show_sourcelink = False

man_pages = command_pages.man_pages()
man_make_section_directory = False
man_show_urls = False

#: `sphinx-build -b linkcheck` asks each address once; anchors of other sites come and go.
linkcheck_anchors = False
linkcheck_timeout = 20
