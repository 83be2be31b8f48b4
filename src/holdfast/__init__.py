"""Holdfast keeps distributed training running.

Importing this package imports neither torch nor any server code: a training script may do it for free.
"""

__version__ = "0.1.0"
