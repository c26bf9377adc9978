"""BiSR (Chen et al., CCS 2024): inversion from both directions, by three attacks in a row.

SIP reads soft labels from the smashed data, and TAG starts from these. After a few steps the
labels' tokens are embedded, and the embeddings are optimized until the pretrained head's output for
them has the direction of the smashed data. Each embedding is read as the token with the largest
inner product. Temperature, steps, rates, AdamW's epsilon (1e-6) and decay (.01) are those of
SplitLLM's code. Messages are levelled, and have the sign that SIP's inverter reads surer; messages
of one text are unmixed first (`reads`), which is ours.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.optim import AdamW

from simsplit.attacks.gradient_view import unmix, view_gradients
from simsplit.attacks.inverters import InverterConfig, divide_by_level
from simsplit.attacks.inverting import Inverting
from simsplit.attacks.knowledge import Knowledge, is_mixed
from simsplit.attacks.tag import EPS, GradientMatching, shift_to_tokens
from simsplit.attacks.text_attack import Read, SeenBatch, split_messages
from simsplit.attacks.threat import Knows, Sees, Threat
from simsplit.models.transformer import use_eager_attention


class BisrConfig(InverterConfig):
    """SIP, followed by gradient matching and by matching of the smashed data."""

    kind: Literal["bisr"] = "bisr"
    threat: ClassVar[Threat] = Threat(
        (Sees.SMASHED, Sees.GRADIENTS), (Knows.PUBLIC, Knows.HEAD, Knows.TAIL)
    )
    temperature: float = Field(default=1.2, gt=0)
    """Temperature of SIP's logits, from which gradient matching starts."""
    gradient_steps: int = Field(default=18, ge=0)
    """Number of steps of gradient matching."""
    gradient_lr: float = Field(default=0.09, gt=0)
    """AdamW's learning rate in gradient matching."""
    smashed_steps: int = Field(default=600, ge=0)
    """Number of steps of matching the smashed data."""
    smashed_lr: float = Field(default=1e-3, gt=0)
    """AdamW's learning rate in matching the smashed data."""
    smashed_weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decay in matching the smashed data."""
    reads: Literal["unmixed", "messages"] = "unmixed"
    """What is read of a text with several messages. unmixed: payloads, features and gradients
    combined with the weights that the gradients' ratio gives. messages: each message as if it were
    a text."""
    effort = (*InverterConfig.effort, "gradient_steps", "smashed_steps")

    def build(self, known: Knowledge) -> "Bisr":
        return Bisr(self, known)


class Bisr(Inverting):
    """An attack that runs its three stages on each batch."""

    config: BisrConfig

    def __init__(self, config: BisrConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        # The gradient is differentiated again, which fused attention kernels cannot do. A copy of
        # its own, since other attacks share the segments of `segment`.
        self.tail = use_eager_attention(known.pretrained.own("tail"))

    def recover(self, seen: SeenBatch) -> Read:
        """Recover a batch by SIP, then by gradient matching, then by matching smashed data.

        Confidence in a guess is that of SIP's inverter.
        """
        sent_MBLD = split_messages(self.known.lift_smashed(seen.smashed), self.messages)
        if self.messages > 1 and self.config.reads == "unmixed":
            sent_MBLD = unmix(self.known, seen, sent_MBLD)[None]
        # A combination's sign is unknown, whatever the method does.
        both = is_mixed(self.known) or len(sent_MBLD) != self.messages
        sign_R = self.signs(sent_MBLD, both)
        smashed = sign_R[:, None, None] * sent_MBLD.flatten(0, 1)
        with torch.no_grad():
            features = self.inverter.eval().features(divide_by_level(smashed))
            read = self.inverter.scores(features)
            sure_R = self.inverter.sure(features, read)
        tokens = self._match_smashed(self._match_gradient(read, seen), smashed, seen)
        return Read(tokens, self.together(sure_R, len(sent_MBLD)))

    def _match_gradient(self, read_RLV: Tensor, seen: SeenBatch) -> Tensor:
        """Return tokens after optimizing SIP's soft labels until their gradient fits."""
        # Labels are next tokens, so SIP's scores move by one place; the last label is unknown.
        soft = (read_RLV / self.config.temperature).softmax(-1)
        start = torch.cat([soft[:, 1:], torch.zeros_like(soft[:, :1])], dim=1)
        view = view_gradients(self.known, seen, self.config.reads)
        context = self.known.stack.get_context(seen.smashed.tensors)
        matching = GradientMatching(self.tail, self.known, view, context)
        labels = matching.descend(start, self.config.gradient_steps, self.config.gradient_lr)
        tokens = shift_to_tokens(labels.argmax(-1), self.vocabulary.pad)
        # No label is a text's first token, so the gradient says nothing of it.
        tokens[:, 0] = read_RLV[:, 0].argmax(-1)
        return tokens

    def _match_smashed(self, tokens_RL: Tensor, smashed_RLD: Tensor, seen: SeenBatch) -> Tensor:
        """Return tokens after optimizing embeddings until the head's output fits the payload."""
        mask = next(iter(self.known.stack.get_context(seen.smashed.tensors)), None)
        known_VD = self.embeddings_VE
        embedded = known_VD[tokens_RL].requires_grad_()
        optimizer = AdamW(
            [embedded],
            lr=self.config.smashed_lr,
            eps=EPS,
            weight_decay=self.config.smashed_weight_decay,
        )
        with torch.enable_grad():
            for _ in range(self.config.smashed_steps):
                optimizer.zero_grad()
                output = self.head.forward_embedded(embedded, mask)
                alike_RL = cosine_similarity(output, smashed_RLD, dim=-1)
                (1 - alike_RL.mean(1)).sum().backward(inputs=[embedded])
                optimizer.step()
        # Row by row: the products with all tokens need much memory.
        return torch.stack([(row @ known_VD.T).argmax(-1) for row in embedded.detach()])
