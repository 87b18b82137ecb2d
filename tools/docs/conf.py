"""Sphinx's settings for the site. `tools/docs/build.py` collects the pages and calls Sphinx."""

import os
import re
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(os.environ["TFF_AGNOSTIC_ROOT"])

project = "tff_agnostic"
author = "the tff_agnostic authors"
version = release = os.environ["TFF_AGNOSTIC_VERSION"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "autoapi.extension"]
source_suffix = {".md": "markdown"}
root_doc = "index"

# Read the API from generated source code, without importing the package. Pages name public objects.
autoapi_dirs = [os.environ["TFF_AGNOSTIC_PUBLIC"]]
autoapi_generate_api_docs = False
autosummary_generate = False
autoapi_python_class_content = "class"
# Docstrings have code in single backticks, as in Markdown.
default_role = "literal"
napoleon_use_ivar = True
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False

# Generate GitHub's anchors of headings, to which pages link.
myst_heading_anchors = 6
# Enable no extensions, because pages contain plain $ and {}.
myst_enable_extensions: list[str] = []
highlight_language = "none"


def setup(app: Sphinx) -> None:
    """Shows diagrams as text, because their renderer would need a download; escapes docstrings."""
    app.add_lexer("mermaid", TextLexer)
    app.connect("autodoc-process-docstring", _as_prose, priority=1)


def _as_prose(*given: Any) -> None:
    """Escapes bars and lists such as "B.", because docstrings are not reStructuredText."""
    lines: list[str] = given[-1]
    escaped = (line.replace("|", "\\|") for line in lines)
    lines[:] = [re.sub(r"(: |^ *)(\w\.)(?= |$)", r"\1\\\2", line) for line in escaped]


html_theme = "furo"
html_title = f"tff_agnostic {version}"
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
html_static_path = [str(ROOT / "tools" / "docs" / "static")]
html_css_files = ["site.css"]
html_theme_options: dict[str, list[str]] = {"top_of_page_buttons": []}
templates_path: list[str] = []
