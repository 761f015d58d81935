"""Checkpoints on disk: TensorFlow bundles under the original release's names."""
