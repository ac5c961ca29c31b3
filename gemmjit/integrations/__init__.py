"""Integrations with array frameworks; each imports its framework and is loaded when needed."""
