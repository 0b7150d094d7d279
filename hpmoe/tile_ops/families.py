"""Imports every module of this folder, so that whoever imports this one knows every tile operation."""

import importlib
import pkgutil

from hpmoe import tile_ops

MODULES = {module.name: importlib.import_module(f"hpmoe.tile_ops.{module.name}")
           for module in pkgutil.iter_modules(tile_ops.__path__) if module.name != "families"}
