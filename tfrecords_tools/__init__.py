"""Text to TFRecords: corpus readers, vocabulary training, pretraining data. No Keras, no training code."""
