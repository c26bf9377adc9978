"""Raw: what the head puts out is what crosses. The baseline of every table."""

from typing import ClassVar, Literal

from simsplit.methods.base import ANYTHING, Method, MethodConfig, Modality, Site


class RawConfig(MethodConfig):
    """Nothing happens at the cut; the same as an empty list of methods."""

    kind: Literal["raw"] = "raw"
    suits: ClassVar[frozenset[Modality]] = ANYTHING
    passes: ClassVar[bool] = True
    reencodes: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True

    def build(self, site: Site) -> Method:
        """A method that overrides nothing."""
        return Method()
