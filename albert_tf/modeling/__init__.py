"""The model: embeddings, attention, feed-forward, encoder, heads, losses."""

from albert_tf.modeling.encoder import Encoder
from albert_tf.modeling.pretraining import AlbertForPreTraining
from albert_tf.modeling.variables import initialize_variables, named_variables

__all__ = [
  "AlbertForPreTraining",
  "Encoder",
  "initialize_variables",
  "named_variables",
]
