"""Fine-tuning tasks: reading, features, metrics and predictions of each kind."""
