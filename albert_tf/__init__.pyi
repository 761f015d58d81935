# The public names and their modules: the one table, for type checkers, for editors, and for
# `__init__.py`, which loads a name when it is first used.
from albert_tf.configs import AlbertConfig as AlbertConfig
from albert_tf.keras_api.callbacks import KeepBest as KeepBest
from albert_tf.keras_api.callbacks import SaveState as SaveState
from albert_tf.keras_api.callbacks import StopOnSignal as StopOnSignal
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
from albert_tf.optim.keras_optimizers import Muon as Muon
from albert_tf.optim.keras_optimizers import WarmupPolynomialDecay as WarmupPolynomialDecay
from albert_tf.tokenization import AlbertTokenizer as AlbertTokenizer

__version__: str
