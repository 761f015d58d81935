"""The model: embeddings, attention, feed-forward, encoder, heads, losses."""

from albert_tf.modeling.encoder import AlbertEncoder
from albert_tf.modeling.masked_lm import AlbertMaskedLM
from albert_tf.modeling.pretraining import AlbertForPreTraining
from albert_tf.modeling.variables import initialize_variables, named_variables

__all__ = [
  "AlbertEncoder",
  "AlbertForPreTraining",
  "AlbertMaskedLM",
  "initialize_variables",
  "named_variables",
]
