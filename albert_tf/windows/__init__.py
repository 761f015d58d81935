"""Long texts as overlapping windows, in training and in serving."""
