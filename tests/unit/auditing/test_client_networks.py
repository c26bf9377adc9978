"""The client's network is a plain description and weights, checked before attacks get it."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import simsplit
from simsplit.attacks import Knows
from simsplit.auditing.audit_options import AuditOptions
from simsplit.auditing.client_networks import load_network
from simsplit.auditing.preparing_audits import PreparedAudit, prepare_audit
from simsplit.errors import SimsplitError
from simsplit.results import Run

LAYERS = "- Conv2d: {in_channels: 1, out_channels: 4, kernel_size: 3, padding: 1}\n- Tanh\n"


def make_net() -> nn.Sequential:
    torch.manual_seed(3)  # noqa: TID251 - a stranger's network
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh())


def draw(count: int, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 3, 3, generator=rng)
    return nn.functional.interpolate(coarse, size=12, mode="bilinear")


@pytest.fixture(scope="module")
def net() -> nn.Sequential:
    return make_net()


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory, net: nn.Sequential) -> dict[str, Path]:
    """Eight private images, and sixty public ones that the same client has encoded."""
    folder, made = tmp_path_factory.mktemp("wires"), {}
    for name, count, seed in (("private", 8, 0), ("public", 60, 1)):
        made[name] = folder / name
        x = draw(count, seed)
        with torch.no_grad():
            simsplit.transcribe(made[name], smashed=net(x), inputs=x, mean=[0.0], std=[1.0])
    return made


@pytest.fixture
def folder(tmp_path: Path, net: nn.Sequential) -> Path:
    """The network's folder: layers in plain words, and weights."""
    made = tmp_path / "net"
    made.mkdir()
    (made / "layers.yaml").write_text(LAYERS)
    save_file(net.state_dict(), made / "weights.safetensors")
    return made


def prepare(wire: Path, **knows: Any) -> PreparedAudit:
    return prepare_audit(
        AuditOptions(
            path=wire, knows=knows, public=None, targets=8, client=None, seed=0, device="cpu"
        )
    )


def offered(wire: Path, **knows: Any) -> set[Any]:
    return {*prepare(wire, **knows).offers.things} & {
        *(Knows.ARCHITECTURE, Knows.WEIGHTS, Knows.QUERIES)
    }


def test_layers_alone_are_an_architecture_and_weights_are_more(
    wires: dict[str, Path], folder: Path, net: nn.Sequential
) -> None:
    wire = wires["private"]
    assert offered(wire) == set()
    assert offered(wire, model=folder) == {Knows.ARCHITECTURE, Knows.WEIGHTS}
    (folder / "weights.safetensors").unlink()
    assert offered(wire, model=folder) == {Knows.ARCHITECTURE}
    assert offered(wire, factory=make_net) == {Knows.ARCHITECTURE}
    assert offered(wire, model=net) == {Knows.ARCHITECTURE, Knows.WEIGHTS}


def test_an_attack_that_knows_layers_alone_starts_from_other_weights(
    wires: dict[str, Path], net: nn.Sequential
) -> None:
    ground = prepare(wires["private"], model=net).ground
    head = ground.scenario.model.segment("head", (1, 12, 12), 2, 5)
    assert head[0].weight.shape == net[0].weight.shape
    assert not torch.equal(head[0].weight, net[0].weight)


def test_whoever_has_the_weights_reads_images(
    wires: dict[str, Path], folder: Path, tmp_path: Path
) -> None:
    rmle = [{"kind": "rmle", "iterations": 400, "lr": 0.05, "tv": 0, "l2": 0}]
    made = simsplit.audit(wires["private"], tmp_path / "a", knows={"model": folder}, attacks=rmle)
    wrong = make_net()
    with torch.no_grad():
        wrong[0].weight.neg_()
    knows = {"model": wrong}
    other = simsplit.audit(wires["private"], tmp_path / "b", knows=knows, attacks=rmle)
    (read,), (misread,) = made.findings, other.findings
    assert read.metric == "ssim"
    assert read.value > 0.9 > misread.value + 0.2
    assert read.role == "ceiling"


def test_an_architecture_is_attacked_without_its_weights(
    wires: dict[str, Path], tmp_path: Path
) -> None:
    unsplit = [{"kind": "unsplit", "outer": 1, "inner": 1, "clones": "batched"}]
    knows = {"factory": make_net}
    made = simsplit.audit(wires["private"], tmp_path / "a", knows=knows, attacks=unsplit)
    (tried,) = made.findings
    assert (tried.attack, tried.role, tried.samples) == ("unsplit", "attack", 4)


def test_known_inputs_of_another_transcript_are_learned_from(
    wires: dict[str, Path], tmp_path: Path
) -> None:
    """All eight private images are attacked, and sixty public ones are known."""
    assert offered(wires["private"], pairs=str(wires["public"])) == {Knows.QUERIES}
    made = simsplit.audit(
        wires["private"], tmp_path / "a", knows={"pairs": wires["public"]}, attacks=["ridge"]
    )
    (read,) = made.findings
    assert (made.facts["targets"], made.facts["pairs"], read.samples) == (8, 60, 8)
    assert read.value > 0.9
    assert Run.load(made.run.path).summary["status"] == "finished"


def test_a_transcript_names_what_lies_below_it(
    wires: dict[str, Path], folder: Path, tmp_path: Path
) -> None:
    import shutil

    wire = tmp_path / "wire"
    shutil.copytree(wires["private"], wire)
    shutil.copytree(folder, wire / "net")
    shutil.copytree(wires["public"], wire / "known")
    facts = (wire / "transcript.yaml").read_text()
    (wire / "transcript.yaml").write_text(f"{facts}\nknows: {{model: net, pairs: known}}\n")
    assert offered(wire) == {Knows.ARCHITECTURE, Knows.WEIGHTS, Knows.QUERIES}
    for linked in ("net", "known"):
        (wire / linked).rename(wire / "elsewhere")
        (wire / linked).symlink_to(wire / "elsewhere")
        with pytest.raises(simsplit.SimsplitError, match=f"{linked}.*(link|directory)"):
            prepare(wire)
        (wire / linked).unlink()
        (wire / "elsewhere").rename(wire / linked)
    (wire / "net" / "layers.yaml").unlink()
    (wire / "net" / "layers.yaml").symlink_to(folder / "layers.yaml")
    with pytest.raises(simsplit.SimsplitError, match=r"layers\.yaml.*link"):
        prepare(wire)
    (wire / "net" / "layers.yaml").unlink()
    (wire / "net" / "weights.pt").touch()
    with pytest.raises(simsplit.SimsplitError, match="unpickled"):
        prepare(wire)


def test_a_part_of_a_network_is_selected_by_its_name(tmp_path: Path, net: nn.Sequential) -> None:
    whole = nn.Sequential()
    whole.add_module("encoder", net)
    whole.add_module("trunk", nn.Flatten())
    save_file(whole.state_dict(), tmp_path / "whole.safetensors")
    made = load_network(
        {"factory": lambda: whole, "model": tmp_path / "whole.safetensors", "module": "encoder"}
    )
    assert made is not None
    assert [*made.weights] == ["head/0.weight", "head/0.bias"]
    assert torch.equal(made.weights["head/0.weight"], net[0].weight)


def test_a_module_that_is_passed_is_not_changed(wires: dict[str, Path]) -> None:
    """A batch norm that trains learns from whatever it is applied to."""
    net = nn.Sequential(*make_net(), nn.BatchNorm2d(4))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    known = prepare(wires["private"], model=net).ground.head
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
        assert torch.equal(known[f"head/{name}"], before[name])
    assert net.training


def _write(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "layers.yaml").write_text(text) and None


def _lose(folder: Path) -> None:
    (folder / "layers.yaml").unlink()


def _shrink(folder: Path) -> None:
    save_file({"0.weight": torch.zeros(2)}, folder / "weights.safetensors")


def _spoil(folder: Path) -> None:
    spoiled = {name: value * torch.nan for name, value in make_net().state_dict().items()}
    save_file(spoiled, folder / "weights.safetensors")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_spoil, r"0\.weight.* finite"),
        (_write("- Conv3d"), "Conv3d"),
        (_write("- {Linear: {in_features: 1000000, out_features: 1000000}}"), "weights, more than"),
        (_write("- {Linear: {in_features: 99999999, out_features: 1}}"), "numbers up to"),
        (_write("- {Linear: {in_featres: 1}}"), "in_featres"),
        (_write("- {Conv2d: [1, 2]}"), "options of Conv2d"),
        (_write("ReLU"), "list"),
        (_write("- !!python/object/apply:os.system ['touch pwned']"), "YAML"),
        (_lose, "layers.yaml"),
        (_shrink, r"0\.weight"),
    ],
)
def test_a_wrong_network_is_named(
    wires: dict[str, Path], folder: Path, change: Callable[[Path], None], named: str
) -> None:
    change(folder)
    with pytest.raises(SimsplitError, match=named):
        prepare(wires["private"], model=folder)


@pytest.mark.parametrize(
    ("knows", "named"),
    [
        ({"factory": lambda: nn.Conv2d(3, 4, 1)}, "inputs of shape"),
        ({"factory": lambda: nn.Conv2d(1, 5, 3, padding=1)}, "module=NAME"),
        ({"factory": lambda: 3}, "nn.Module"),
        ({"factory": lambda: 1 / 0}, "ZeroDivisionError"),
        ({"factory": "net.py"}, "FILE.py:NAME"),
        ({"factory": "nowhere.py:make"}, "--knows: factory"),
        ({"factory": make_net, "module": "2"}, "unknown '2'"),
        ({"module": "encoder"}, "model="),
        ({"model": "weights.pt"}, "unpickled"),
        ({"model": "nowhere.safetensors"}, "no file 'nowhere"),
        ({"pairs": "nowhere"}, "pairs"),
    ],
)
def test_wrong_knowledge_is_named(
    wires: dict[str, Path], knows: dict[str, Any], named: str
) -> None:
    with pytest.raises(SimsplitError, match=named):
        prepare(wires["private"], **knows)


def test_the_command_takes_a_factory_of_a_file(simsplit, wires, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Conv2d(1, 4, 3, padding=1)\n"
    )
    knows = ("--knows", f"factory={tmp_path / 'mine.py'}:make")
    words = ("audit", wires["private"], "--attack", "unsplit", "--out", tmp_path / "a", *knows)
    code, out, err = simsplit(*words, "--budget", "0.01m", "--json")
    assert code == 0, err
    untried = {each["attack"]: each["wants"] for each in json.loads(out)["untried"]}
    assert untried["unsplit"] == [], "it lacks time alone"
    code, _, err = simsplit("audit", wires["private"], *knows[:1], knows[1] + "r")
    assert code == 2
    assert "maker" in err


def test_60_mutated_networks_end_in_a_sentence_or_are_read(folder: Path) -> None:
    """Bytes are changed, cut off or added; no other error leaves."""
    rng, refused = random.Random(0), []
    contents = {file: file.read_bytes() for file in sorted(folder.iterdir())}
    for number in range(60):
        file = rng.choice(sorted(contents))
        changed = bytearray(contents[file])
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(min(80, len(changed)))] = rng.randrange(256)
        file.write_bytes(changed[: rng.randrange(len(changed))] if number % 3 == 0 else changed)
        try:
            load_network({"model": folder})
        except SimsplitError as error:
            refused.append(str(error))
        file.write_bytes(contents[file])
    assert len(refused) > 30
    assert not any("\n" in each for each in refused)
