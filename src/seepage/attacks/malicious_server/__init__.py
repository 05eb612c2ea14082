"""Attacks by a malicious server, which plants weights or layers in the network it sends."""
