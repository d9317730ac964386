"""Packaging of sphereflow; the settings of tools are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "sphereflow/__init__.py").read_text(), re.MULTILINE)[1]

# The lowest versions are those that `make lowest` runs the tests with.
REQUIREMENTS = [
    "numpy>=2.0",
    "scipy>=1.15",
    "xarray>=2024.6",
    "netCDF4>=1.7.1.post1",
    "matplotlib>=3.9",
    "pillow>=10.0",
    "ducc0>=0.35",
    "numba>=0.60",
    "pydantic>=2.7",
    "threadpoolctl>=3.1",
    "tqdm>=4.64",
    "tomli_w>=1.0",
    "POT>=0.9.4",
    "jinja2>=3.1",
]
ENSEMBLE = ["dask>=2024.12", "distributed>=2024.12"]
EXTRAS = {
    "shtns": ["shtns>=3.7"],
    "ensemble": ENSEMBLE,
    "test": ["pytest>=8.0", "pytest-xdist>=3.5", "hypothesis>=6.100", "ruff>=0.9", "selenium>=4.20", *ENSEMBLE],
    "docs": ["sphinx>=8.1", "myst-parser>=4.0", "furo>=2024.8.6", "numpydoc>=1.8", "sphinx-mathjax-offline>=0.0.2"],
}

setup(
    name="sphereflow",
    version=VERSION,
    description="Mean-field dynamics of multi-head transformers as a PDE on the sphere, with an energy ledger",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The sphereflow developers",
    license="BSD-3-Clause",
    license_files=["LICENSE"],
    keywords=["transformer", "mean field", "Wasserstein gradient flow", "finite volumes", "sphere"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Mathematics",
        "Topic :: Scientific/Engineering :: Physics",
    ],
    packages=find_packages(include=["sphereflow", "sphereflow.*"]),
    package_data={"sphereflow.report": ["page/*"]},
    python_requires=">=3.11",
    install_requires=REQUIREMENTS,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["sphereflow = sphereflow.cli:main"]},
)
