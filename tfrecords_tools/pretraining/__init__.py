"""Text to pretraining records: pure functions of (document, pass, seed), and the runners that drive them."""
