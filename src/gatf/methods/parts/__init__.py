"""Components that several methods share."""
