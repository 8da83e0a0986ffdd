"""Sphinx configuration: pydata theme, numpydoc for docstrings, MyST for pages."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

import dnnarray

project = "dnnarray"
author = "the dnnarray developers"
copyright = "the dnnarray developers"
version = release = dnnarray.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # formulas without a network
    "sphinx.ext.viewcode",
    "sphinx_design",
    "numpydoc",
    "myst_parser",
    "reference",
    "benchmarks",
    "kernel_map",
    "sphinx_gallery.gen_gallery",
]
autodoc_typehints = "none"  # the docstrings state the types, with shapes
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
numpydoc_show_class_members = False
html_theme = "pydata_sphinx_theme"
html_title = "dnnarray"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False, "navbar_align": "left"}
html_static_path = ["_static"]
html_search_scorer = str(Path(__file__).parent / "_static" / "search_scorer.js")
exclude_patterns = ["_build", "gallery_src"]
# Scripts named plot_* are run; the short ones of the gallery are shown alone, and the tests run them. A tutorial for a
# library that is not installed is shown without its output.
_ABSENT = [name for name, library in (("pytorch", "torch"), ("jax", "jax")) if not find_spec(library)]
sphinx_gallery_conf = {
    "examples_dirs": "gallery_src",
    "gallery_dirs": "tutorials",
    "filename_pattern": rf"/plot_(?!{'|'.join(_ABSENT)})" if _ABSENT else "/plot_",
    "abort_on_example_error": True,
}
