"""Reading and writing checkpoints of the original release, TensorFlow Hub and Hugging Face."""
