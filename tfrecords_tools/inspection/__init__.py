"""Shows, measures and validates records, whoever made them."""
