"""Timing that is hard to fool: interleaved ratios, two power states, verified results, peers."""
