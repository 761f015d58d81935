"""Text to TFRecords: corpus readers, vocabularies, pretraining data. No Keras, no training."""
