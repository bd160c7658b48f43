"""Certify multi-node training clusters with pytest."""

__version__ = "0.1.0"
