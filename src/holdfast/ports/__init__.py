"""Small protocols the shells need, and nothing that implements them for real."""
