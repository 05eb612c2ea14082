"""Mathematics that does not depend on networks."""
