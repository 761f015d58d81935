"""Names that are loaded when they are first used, by Python and by Keras.

`keras.saving.load_model` finds a class only where it has been registered, which the class does when its module is
imported. So that a user need not know these modules, a stand-in is registered for each of them, once Keras is there.
"""

from collections.abc import Mapping
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

_MODELING = "albert_tf.modeling."
_HEADS = "albert_tf.models.heads"
_MODELS = "albert_tf.models.tasks"
_OPTIMIZERS = "albert_tf.optim.keras_optimizers"

# Public name → its module.
_PUBLIC: Mapping[str, str] = {
  "AlbertConfig": "albert_tf.configs",
  "AlbertTokenizer": "albert_tf.tokenization",
}
# Name under which Keras knows it, behind "albert_tf>" → its module.
REGISTERED: Mapping[str, str] = {
  "AdamW": _OPTIMIZERS,
  "AlbertClassifier": _MODELS,
  "AlbertEmbeddings": f"{_MODELING}embeddings",
  "AlbertEncoder": f"{_MODELING}encoder",
  "AlbertForPreTraining": f"{_MODELING}pretraining",
  "AlbertMaskedLM": f"{_MODELING}masked_lm",
  "AlbertMultipleChoice": _MODELS,
  "AlbertPreprocessor": "albert_tf.models.preprocessor",
  "AlbertQuestionAnswering": _MODELS,
  "AlbertTagger": _MODELS,
  "AttentionSublayer": f"{_MODELING}attention",
  "ClassificationHead": _HEADS,
  "Dense": f"{_MODELING}dense",
  "FeedForwardSublayer": f"{_MODELING}feed_forward",
  "Lamb": _OPTIMIZERS,
  "LayerNorm": f"{_MODELING}layer_norm",
  "MaskedLmHead": f"{_MODELING}pretraining_heads",
  "SentenceOrderHead": f"{_MODELING}pretraining_heads",
  "SpanHead": _HEADS,
  "Squad2Head": _HEADS,
  "WarmupPolynomialDecay": _OPTIMIZERS,
  "answerability_loss": _HEADS,
}


def load(name: str) -> Any:
  """The object of that name, from its module."""
  return getattr(importlib.import_module({**REGISTERED, **_PUBLIC}[name]), name)


class _StandIn:
  """Registered in a class's place until its own module is imported, which replaces it."""

  def __init__(self, name: str):
    self._name = name

  def from_config(self, config: Mapping[str, Any], **kwargs: Any) -> Any:
    return load(self._name).from_config(config, **kwargs)

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    return load(self._name)(*args, **kwargs)


def _register(keras: types.ModuleType) -> None:
  known = keras.saving.get_custom_objects()
  for name in REGISTERED:
    known.setdefault(f"albert_tf>{name}", _StandIn(name))


class _AfterKeras(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds Keras where everybody does, and registers the stand-ins once it has been imported."""

  def __init__(self) -> None:
    self._loader: Any = None
    self._searching = False

  def find_spec(
    self, fullname: str, path: Any = None, target: Any = None
  ) -> importlib.machinery.ModuleSpec | None:
    if fullname != "keras" or self._searching:
      return None
    self._searching = True
    try:
      spec = importlib.util.find_spec(fullname)
    finally:
      self._searching = False
    if spec is not None and spec.loader is not None:
      self._loader, spec.loader = spec.loader, self
    return spec

  def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
    return self._loader.create_module(spec)

  def exec_module(self, module: types.ModuleType) -> None:
    assert module.__spec__ is not None
    module.__loader__ = module.__spec__.loader = self._loader
    sys.meta_path.remove(self)
    self._loader.exec_module(module)
    _register(module)


def make_loadable() -> None:
  """Registers the stand-ins, now or as soon as Keras is imported."""
  if "keras" in sys.modules:
    _register(sys.modules["keras"])
  else:
    sys.meta_path.insert(0, _AfterKeras())
