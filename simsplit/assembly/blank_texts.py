"""Blank texts stand for a run's own, so that its model can write where the texts are no more.

What a model writes depends on its weights and on the prompt, unless a method reads or mixes texts.
"""

import numpy as np
import torch

from simsplit.data import Prepared
from simsplit.data.preparing import build_vocabulary
from simsplit.data.samples import IGNORED, Samples, TextInfo
from simsplit.data.texts import TextTable
from simsplit.scenario import Scenario
from simsplit.scenario.setting import mixes_texts


def make_blank_texts(scenario: Scenario) -> Prepared | None:
    """Return a blank text for each client and split; None where a method needs the real ones."""
    source, config = scenario.data.source, scenario.data
    reads = any(each.reads_tokens for each in scenario.method)
    needed = reads or mixes_texts(scenario.method) or scenario.clients.malicious is not None
    if needed or not isinstance(source, TextTable) or (info := source.describe()) is None:
        return None
    count, reader = scenario.clients.count, scenario.text_reader()
    ones = torch.ones(count, dtype=torch.int64)
    inputs = torch.full((count, info.shape[0]), reader.pad, dtype=torch.int64)
    left = source.padding == "left"
    texts = TextInfo(lengths=2 * ones, prompts=ones, groups=0 * ones, left=left)
    blank = Samples(inputs, torch.full_like(inputs, IGNORED), texts)
    has_public = bool(config.auxiliary) or config.public is not None
    return Prepared(
        name="blank",
        info=info,
        train=blank,
        validation=blank if config.validation else None,
        auxiliary=blank if has_public else None,
        test=blank,
        parts=np.array_split(np.arange(count), count),
        mean=(),
        std=(),
        class_names=source.class_names,
        vocabulary=build_vocabulary(source, reader),
    )
