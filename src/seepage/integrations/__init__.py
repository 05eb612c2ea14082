"""Other people's frameworks; optional, and imported by nobody below."""
