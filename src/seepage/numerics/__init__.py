"""Mathematics that knows no network."""
