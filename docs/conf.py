"""Settings of the documentation site: `make docs` builds it into build/docs, and every warning is an error there.

The pages are the Markdown files of this folder, which also read well where they are, and the docstrings of the package.
Equations are typeset by a copy of MathJax that comes with the site (extension sphinx-mathjax-offline), so that it can be read
without a network.
"""

import re

from sphereflow import __version__

project = "sphereflow"
author = "The sphereflow developers"
copyright = "the sphereflow developers, BSD-3-Clause"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "numpydoc",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
]

# Markdown: headings are link targets as on GitHub, $$ ... $$ (name) is a numbered equation.
myst_enable_extensions = ["dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 4

# Docstrings: NumPy style; an object stands under the name by which it is imported.
numpydoc_show_class_members = False  # autodoc lists them
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings state types, shapes and units
autodoc_preserve_defaults = True
default_role = "literal"  # `name` in a docstring
add_module_names = False

highlight_language = "none"  # of blocks that do not name one

html_theme = "furo"
html_title = f"sphereflow {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = True
html_copy_source = False


def read_as_text(app, what, name, obj, options, lines):
    """Let the formulas of a docstring be what they look like in the source, not reStructuredText.

    abs(x) is written with bars there, which are no substitutions; a name may end with an underscore, which makes no link; an
    indented block of a module's docstring is a formula, to be shown as it stands.
    """
    text, literal, before = [], None, ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and indent <= literal:
            literal = None
        if literal is None and what == "module" and indent >= 4 and not before.strip():
            literal = 0
            text += ["::", ""]
        if literal is None:
            pieces = line.split("``")
            pieces[::2] = [re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", piece.replace("|", r"\|")) for piece in pieces[::2]]
            line = "``".join(pieces)
            if line.endswith("::"):
                literal = indent
        text.append(line)
        before = line
    lines[:] = text


def setup(app):
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", read_as_text)
