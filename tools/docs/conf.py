"""Sphinx's settings for the site. `tools/docs/build.py` gathers the pages and calls Sphinx."""

import os
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(os.environ["TFF_AGNOSTIC_ROOT"])

project = "tff_agnostic"
author = "the tff_agnostic authors"
version = release = os.environ["TFF_AGNOSTIC_VERSION"]
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = True

# GitHub's anchors, which pages link to.
myst_heading_anchors = 6
# Prose has $ and {} that mean nothing to Markdown.
myst_enable_extensions: list[str] = []
highlight_language = "none"


def setup(app: Sphinx) -> None:
    """Diagrams are shown as their text: what draws them is fetched from elsewhere."""
    app.add_lexer("mermaid", TextLexer)


html_theme = "furo"
html_title = f"tff_agnostic {version}"
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
html_static_path = [str(ROOT / "tools" / "docs" / "static")]
html_css_files = ["site.css"]
html_theme_options = {"top_of_page_buttons": []}
templates_path: list[str] = []
