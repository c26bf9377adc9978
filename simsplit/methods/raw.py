"""This module declares `raw`, the baseline of every table: smashed data crosses unchanged."""

from typing import ClassVar, Literal

from simsplit.methods.method import ANYTHING, Method, MethodConfig, Modality, Site


class RawConfig(MethodConfig):
    """No change at the cut, equivalent to an empty list of methods."""

    kind: Literal["raw"] = "raw"
    modalities: ClassVar[frozenset[Modality]] = ANYTHING
    works_in_sessions: ClassVar[bool] = True
    reencodes: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True

    def build(self, site: Site) -> Method:
        return Method()
