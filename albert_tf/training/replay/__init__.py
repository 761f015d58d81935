"""One update of a run computed again: where it comes from, its losses, and how a person sees them."""
