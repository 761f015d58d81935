"""What every run needs: devices and workers, its directory, checkpoints, metrics, interruption."""
