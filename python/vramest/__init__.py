"""Predicts the VRAM of diffusion training before a GPU is touched."""

from vramest._core import __version__

__all__ = ["__version__"]
