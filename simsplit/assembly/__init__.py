"""The live parts of a run: who owns what, how its rounds go, what it will take."""

from simsplit.assembly.assembler import Assembler, Assembly
from simsplit.assembly.recipes import HostRecipe

__all__ = ["Assembler", "Assembly", "HostRecipe"]
