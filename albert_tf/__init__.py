"""ALBERT for TensorFlow 2 / Keras: pretraining, fine-tuning and serving.

Importing this package alone loads neither TensorFlow nor Keras, so that the data tools and `--help`
stay light: the names below are loaded when they are first used. The first Keras class that is used
registers all of them. So before `keras.saving.load_model`, write
`from albert_tf import AlbertClassifier`; `import albert_tf` is not enough.
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

# Name → its module. Type checkers and editors read the imports above.
_MODULE_OF = {
  "AlbertConfig": "albert_tf.configs",
  "AlbertTokenizer": "albert_tf.tokenization",
  "AlbertPreprocessor": "albert_tf.keras_api.preprocessor",
  "AlbertEncoder": "albert_tf.keras_api.pretrained",
  "AlbertForPreTraining": "albert_tf.keras_api.pretrained",
  "AlbertMaskedLM": "albert_tf.keras_api.pretrained",
  "AlbertSentenceEncoder": "albert_tf.keras_api.sentence_vectors",
  "InBatchNegatives": "albert_tf.keras_api.sentence_vectors",
  "cosine_regression": "albert_tf.keras_api.sentence_vectors",
  "AlbertClassifier": "albert_tf.keras_api.tasks",
  "AlbertMultipleChoice": "albert_tf.keras_api.tasks",
  "AlbertQuestionAnswering": "albert_tf.keras_api.tasks",
  "AlbertTagger": "albert_tf.keras_api.tasks",
  "AdamW": "albert_tf.optim.keras_optimizers",
  "Lamb": "albert_tf.optim.keras_optimizers",
  "WarmupPolynomialDecay": "albert_tf.optim.keras_optimizers",
}
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
