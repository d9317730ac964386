"""Figures: the only room that draws."""

from sphereflow.plotting.comparison import plot_comparison

__all__ = ["plot_comparison"]
