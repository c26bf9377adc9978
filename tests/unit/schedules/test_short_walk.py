"""The way from the command line to a head's forward pass is short enough to be read."""

import sys
import traceback
from pathlib import Path

import pytest
import yaml
from builders import TINY
from torch.nn.modules.module import register_module_forward_pre_hook

import simsplit
from simsplit.__main__ import main

PACKAGE = Path(simsplit.__file__).parent
MOST_FRAMES, MOST_FILES = 17, 10


def test_from_the_command_line_to_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, walk = tmp_path / "short.yaml", []
    one_round = {"schedule": {"kind": "round_robin", "rounds": 1}}
    file.write_text(yaml.safe_dump({**TINY, **one_round}))
    words = ["simsplit", "run", str(file), "--out", str(tmp_path / "run"), "--quiet"]
    monkeypatch.setattr(sys, "argv", words)

    def keep(*_: object) -> None:
        frames = traceback.extract_stack()
        if not walk and any(frame.name == "smash" for frame in frames):
            walk.extend(f for f in frames if PACKAGE in Path(f.filename).parents)

    hook = register_module_forward_pre_hook(keep)
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        hook.remove()
    assert not end.value.code
    assert (walk[0].name, walk[-1].name) == ("main", "smash")
    assert len(walk) <= MOST_FRAMES
    assert len({frame.filename for frame in walk}) <= MOST_FILES
