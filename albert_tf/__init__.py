"""ALBERT for TensorFlow 2 / Keras: pretraining, fine-tuning and serving.

Importing this package alone loads neither TensorFlow nor Keras, so that the data tools and `--help` stay light: the
names below are loaded when they are first used. With Keras, `import albert_tf` is all that
`keras.saving.load_model` needs for a model saved with any of them.
"""

from typing import TYPE_CHECKING, Any

from albert_tf.lazy import load, make_loadable

if TYPE_CHECKING:
  from albert_tf.configs import AlbertConfig as AlbertConfig
  from albert_tf.modeling import AlbertEncoder as AlbertEncoder
  from albert_tf.modeling import AlbertForPreTraining as AlbertForPreTraining
  from albert_tf.modeling import AlbertMaskedLM as AlbertMaskedLM
  from albert_tf.models.preprocessor import AlbertPreprocessor as AlbertPreprocessor
  from albert_tf.models.tasks import AlbertClassifier as AlbertClassifier
  from albert_tf.models.tasks import AlbertMultipleChoice as AlbertMultipleChoice
  from albert_tf.models.tasks import AlbertQuestionAnswering as AlbertQuestionAnswering
  from albert_tf.models.tasks import AlbertTagger as AlbertTagger
  from albert_tf.optim.keras_optimizers import AdamW as AdamW
  from albert_tf.optim.keras_optimizers import Lamb as Lamb
  from albert_tf.optim.keras_optimizers import WarmupPolynomialDecay as WarmupPolynomialDecay
  from albert_tf.tokenization import AlbertTokenizer as AlbertTokenizer

__version__ = "0.1.0"
__all__ = [
  "AdamW",
  "AlbertClassifier",
  "AlbertConfig",
  "AlbertEncoder",
  "AlbertForPreTraining",
  "AlbertMaskedLM",
  "AlbertMultipleChoice",
  "AlbertPreprocessor",
  "AlbertQuestionAnswering",
  "AlbertTagger",
  "AlbertTokenizer",
  "Lamb",
  "WarmupPolynomialDecay",
]


def __getattr__(name: str) -> Any:
  if name not in __all__:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return load(name)


def __dir__() -> list[str]:
  return sorted([*globals(), *__all__])


make_loadable()
