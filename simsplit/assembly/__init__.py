"""The live parts of a run are built here from a scenario and its data, and measured beforehand."""

from simsplit.assembly.assembler import Assembler, Assembly, HostRecipe

__all__ = ["Assembler", "Assembly", "HostRecipe"]
