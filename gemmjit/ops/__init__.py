"""Operators on arrays: validate, choose, plan, hand to an executor."""
