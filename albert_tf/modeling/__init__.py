"""The model: embeddings, attention, feed-forward, encoder, heads, losses."""

from albert_tf.modeling.encoder import Encoder as Encoder
from albert_tf.modeling.pretraining import AlbertForPreTraining as AlbertForPreTraining
from albert_tf.modeling.variables import initialize_variables as initialize_variables
from albert_tf.modeling.variables import named_variables as named_variables
