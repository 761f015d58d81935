"""SQuAD 1.1 and 2.0: reading, windows, answers and metrics."""
