"""The models a Keras user imports: an encoder with a head, texts as input, checkpoints, exports."""
