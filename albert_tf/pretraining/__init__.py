"""Pretraining: distribution, the step, the loop, checkpoints, reports."""
