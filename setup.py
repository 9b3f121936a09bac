"""Everything is in pyproject.toml but the compiled rows of attention, which are left out where nothing compiles them."""

from setuptools import Extension, setup

ROWS = Extension(
    "quietformer.attention.kernels._rows",
    ["src/quietformer/attention/kernels/rows.c"],
    # OpenMP's threads are the ones torch has already.
    extra_compile_args=["-O3", "-fopenmp"],
    extra_link_args=["-fopenmp"],
    optional=True,
)

setup(ext_modules=[ROWS])
