"""What a run says about itself: metrics, curves, progress, where its time went, traces."""
