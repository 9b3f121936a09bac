"""What replaces softmax attention. Each module here registers what it defines: adding a variant is adding a file."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):  # what is compiled is no module of Python's
        importlib.import_module(f"{__name__}.{_module.name}")
