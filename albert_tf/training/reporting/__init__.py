"""Reports of a run: metrics, curves, progress, use of time."""
