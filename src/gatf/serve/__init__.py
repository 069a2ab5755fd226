"""A model behind an address: `gatf serve` for programs, `gatf studio` with a page for users."""
