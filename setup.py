"""Builds the optional C extension; every other setting is in pyproject.toml.

Without a compiler the package installs and works all the same: the attention kernels then use torch's own operators.
"""

import sys

from setuptools import Extension, setup

# OpenMP uses the thread pool that torch already has. Compilers of other platforms do not take these flags.
OPENMP = ["-fopenmp"] if sys.platform == "linux" else []
OPTIMIZE = ["-O3"] if sys.platform != "win32" else []

ROWS = Extension(
    "quietformer.attention.kernels._rows",
    ["src/quietformer/attention/kernels/rows.c"],
    extra_compile_args=[*OPTIMIZE, *OPENMP],
    extra_link_args=OPENMP,
    optional=True,
)

setup(ext_modules=[ROWS])
