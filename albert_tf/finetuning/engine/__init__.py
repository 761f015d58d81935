"""Fine-tuning of any task: batches, `fit`, predictions, run directory, resumption."""
