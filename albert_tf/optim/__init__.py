"""Optimizers: the LAMB and AdamW equations, schedules, parameter groups, and how they are built."""
