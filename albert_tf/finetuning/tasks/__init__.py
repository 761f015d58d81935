"""What a fine-tuning task is: readers, features, scores and outputs, one file a kind."""
