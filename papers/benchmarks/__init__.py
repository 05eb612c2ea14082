"""Measurements of speed and quality; results/ holds what was measured."""
