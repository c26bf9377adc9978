"""A method: send signs alone, an eighth of the bytes of floats or less."""

from typing import Literal

from simsplit import CodecConfig, Method


class SignConfig(CodecConfig):
    """Send signs alone, scaled by each sample's mean magnitude."""

    kind: Literal["sign"] = "sign"

    def build(self, site):
        return Sign()


class Sign(Method):
    num_side = 1  # one tensor beside the payload

    def pack(self, x, step):  # the wire format; bytes are counted from it
        return x.sign().char(), x.abs().flatten(1).mean(1)

    def unpack(self, tensors, step):
        signs, scale = tensors
        return signs.float() * scale.view(-1, *[1] * (signs.dim() - 1))


METHODS = {"sign": SignConfig}
