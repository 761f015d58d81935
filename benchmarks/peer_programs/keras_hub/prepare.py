"""The same tiny model with random weights, as a preset of Keras Hub: run/."""

import keras_hub

tokenizer = keras_hub.models.AlbertTokenizer(proto="spm.model")
backbone = keras_hub.models.AlbertBackbone(
  vocabulary_size=tokenizer.vocabulary_size(),
  num_layers=2,
  num_heads=4,
  embedding_dim=128,
  hidden_dim=128,
  intermediate_dim=512,
  max_sequence_length=512,
)
preprocessor = keras_hub.models.AlbertTextClassifierPreprocessor(tokenizer, sequence_length=512)
keras_hub.models.AlbertTextClassifier(backbone, 2, preprocessor=preprocessor).save_to_preset("run")
