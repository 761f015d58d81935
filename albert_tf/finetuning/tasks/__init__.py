"""Fine-tuning tasks: readers, features, scores and outputs, one file a kind."""
