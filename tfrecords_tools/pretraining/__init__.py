"""Text to records: pure functions of (document, pass, seed), and the runners that drive them."""
