"""ALBERT for TensorFlow 2 / Keras: pretraining, fine-tuning and serving.

Importing this package alone loads neither TensorFlow nor Keras, so that the data tools and `--help`
stay light: the names in `__init__.pyi` are loaded when they are first used. The first Keras class
that is used registers all of them. So before `keras.saving.load_model`, write
`from albert_tf import AlbertClassifier`; `import albert_tf` is not enough.
"""

import ast
import importlib
import pathlib
from typing import Any

__version__ = "0.1.0"

# Name → its module, from the stub that type checkers read: each name is written once.
_STUB = ast.parse(pathlib.Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_IMPORTS = [statement for statement in _STUB.body if isinstance(statement, ast.ImportFrom)]
_MODULE_OF = {name.name: str(source.module) for source in _IMPORTS for name in source.names}
_WITHOUT_KERAS = ("albert_tf.configs", "albert_tf.tokenization")
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
  if name not in _MODULE_OF:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  module = _MODULE_OF[name]
  if module not in _WITHOUT_KERAS:
    # An import registers the classes of a module, and a saved model may have those of any.
    for keras_module in _MODULE_OF.values():
      importlib.import_module(keras_module)
  return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
  return sorted(set(globals()).union(__all__))
