"""ALBERT for TensorFlow 2 / Keras: pretraining, fine-tuning and serving.

Importing this package alone does not import TensorFlow, so that the data
tools and `--help` stay light. Import the subpackage you need, for example
`from albert_tf.modeling import AlbertForPreTraining`.
"""

__version__ = "0.1.0"
