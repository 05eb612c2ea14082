"""Integrations with other frameworks; all are optional."""
