"""Texts: which tokens a batch holds, and in which order."""
