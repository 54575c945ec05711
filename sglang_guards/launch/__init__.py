"""What is known of one launch: facts with provenance, and what follows from them."""
