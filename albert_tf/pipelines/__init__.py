"""Record files to batches: the index, the order, the datasets."""
