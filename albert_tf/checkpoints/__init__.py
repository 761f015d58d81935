"""Reading and writing checkpoints of the original release, TensorFlow Hub and Hugging Face."""

from albert_tf.checkpoints.checkpoint import Checkpoint as Checkpoint
from albert_tf.checkpoints.checkpoint import find_checkpoint as find_checkpoint
from albert_tf.checkpoints.checkpoint import load_tokenizer as load_tokenizer
from albert_tf.checkpoints.checkpoint import read_checkpoint as read_checkpoint
from albert_tf.checkpoints.convert import convert as convert
from albert_tf.checkpoints.load import ANY_HEAD as ANY_HEAD
from albert_tf.checkpoints.load import FINETUNED_HEADS as FINETUNED_HEADS
from albert_tf.checkpoints.load import PRETRAINING_HEADS as PRETRAINING_HEADS
from albert_tf.checkpoints.load import load_weights as load_weights
from albert_tf.configs.conversion import ConvertOptions as ConvertOptions
