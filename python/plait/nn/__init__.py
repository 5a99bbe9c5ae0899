"""Modules over Plait's operators."""

from plait.nn._experts import Experts
from plait.nn._moe import MLP, MoE, Router

__all__ = ["MLP", "Experts", "MoE", "Router"]
