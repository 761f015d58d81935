"""What fine-tunes any task: batches, `fit`, predictions, the run directory, resumption."""
