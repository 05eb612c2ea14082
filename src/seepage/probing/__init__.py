"""Looking inside a network: what runs, what reads the input, what ends it."""
