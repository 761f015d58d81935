"""ALBERT for TensorFlow 2 / Keras: pretraining, fine-tuning and serving.

Importing this package alone loads neither TensorFlow nor Keras, so that the data tools and `--help` stay light: the
names below are loaded when they are first used. The first Keras class that is used registers all of them. So before
`keras.saving.load_model`, write `from albert_tf import AlbertClassifier`; `import albert_tf` is not enough.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from albert_tf.configs import AlbertConfig as AlbertConfig
  from albert_tf.keras_api.preprocessor import AlbertPreprocessor as AlbertPreprocessor
  from albert_tf.keras_api.pretrained import AlbertEncoder as AlbertEncoder
  from albert_tf.keras_api.pretrained import AlbertForPreTraining as AlbertForPreTraining
  from albert_tf.keras_api.pretrained import AlbertMaskedLM as AlbertMaskedLM
  from albert_tf.keras_api.sentence_vectors import AlbertSentenceEncoder as AlbertSentenceEncoder
  from albert_tf.keras_api.sentence_vectors import InBatchNegatives as InBatchNegatives
  from albert_tf.keras_api.sentence_vectors import cosine_regression as cosine_regression
  from albert_tf.keras_api.tasks import AlbertClassifier as AlbertClassifier
  from albert_tf.keras_api.tasks import AlbertMultipleChoice as AlbertMultipleChoice
  from albert_tf.keras_api.tasks import AlbertQuestionAnswering as AlbertQuestionAnswering
  from albert_tf.keras_api.tasks import AlbertTagger as AlbertTagger
  from albert_tf.optim.keras_optimizers import AdamW as AdamW
  from albert_tf.optim.keras_optimizers import Lamb as Lamb
  from albert_tf.optim.keras_optimizers import WarmupPolynomialDecay as WarmupPolynomialDecay
  from albert_tf.tokenization import AlbertTokenizer as AlbertTokenizer

__version__ = "0.1.0"

_WITHOUT_KERAS = {"AlbertConfig": "albert_tf.configs", "AlbertTokenizer": "albert_tf.tokenization"}
_KERAS = {
  "albert_tf.keras_api.preprocessor": "AlbertPreprocessor",
  "albert_tf.keras_api.pretrained": "AlbertEncoder AlbertForPreTraining AlbertMaskedLM",
  "albert_tf.keras_api.sentence_vectors": "AlbertSentenceEncoder InBatchNegatives cosine_regression",
  "albert_tf.keras_api.tasks": "AlbertClassifier AlbertMultipleChoice AlbertQuestionAnswering AlbertTagger",
  "albert_tf.optim.keras_optimizers": "AdamW Lamb WarmupPolynomialDecay",
}
__all__ = sorted([*_WITHOUT_KERAS, *" ".join(_KERAS.values()).split()])


def __getattr__(name: str) -> Any:
  if name in _WITHOUT_KERAS:
    return getattr(importlib.import_module(_WITHOUT_KERAS[name]), name)
  if name not in __all__:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  modules = {module: importlib.import_module(module) for module in _KERAS}
  return next(getattr(modules[module], name) for module, names in _KERAS.items() if name in names.split())


def __dir__() -> list[str]:
  return sorted([*globals(), *__all__])
