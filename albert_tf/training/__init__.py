"""Where model, optimizer and input meet: distribution, the step, the loop, checkpoints, reports."""
