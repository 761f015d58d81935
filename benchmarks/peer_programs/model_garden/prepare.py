"""The same tiny encoder with random weights, as a checkpoint of Model Garden: run/encoder."""

import tensorflow as tf
import tensorflow_models as tfm

settings = {"vocab_size": 8000, "embedding_width": 128, "hidden_size": 128, "num_layers": 2}
settings |= {"num_attention_heads": 4, "intermediate_size": 512, "max_position_embeddings": 512}
encoder = tfm.nlp.encoders.build_encoder(tfm.nlp.encoders.EncoderConfig(type="albert", albert=settings))
tf.train.Checkpoint(encoder=encoder).write("run/encoder")
