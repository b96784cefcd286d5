"""Multicast: which group carries which tree, and the planes that install the trees."""
