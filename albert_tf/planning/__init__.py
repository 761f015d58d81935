"""Estimates before a run: parameters, FLOPs, memory, time."""
