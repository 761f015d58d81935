"""SQuAD 1.1 and 2.0: reading, alignment, windows, decoding, metrics. Only `task` imports TensorFlow."""
