"""The fine-tuning of any task: batches, `fit`, predictions, the run directory, resumption."""
