"""Keras models with an encoder and a head, which take texts, load checkpoints and write exports."""
