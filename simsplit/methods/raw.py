"""Raw: what the head puts out is what crosses. The baseline of every table."""

from typing import Literal

from simsplit.methods.base import Method, MethodConfig, Site


class RawConfig(MethodConfig):
    """Nothing happens at the cut; the same as an empty list of methods."""

    kind: Literal["raw"] = "raw"

    def build(self, site: Site) -> Method:
        """A method that overrides nothing."""
        return Method()
