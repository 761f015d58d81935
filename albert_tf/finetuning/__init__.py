"""Fine-tuning: data, tasks and the training of any task."""
