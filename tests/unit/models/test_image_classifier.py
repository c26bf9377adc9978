"""A vision transformer of transformers, cut at any layer, is the whole one: equal to the bit."""

from functools import cache

import pytest
import torch
from builders import run_to_end, scenario
from families import IMAGE_FAMILIES, IMAGE_SIZES, LAYERS
from gists import says
from pydantic import ValidationError

from simsplit.assembly.exporting import export
from simsplit.assembly.trained import load_trained
from simsplit.errors import ScenarioError
from simsplit.models import exactness
from simsplit.models.exactness import require_exact_cut
from simsplit.models.image_classifier import ImageClassifier
from simsplit.models.image_transformer import copy_image_segment, get_classifier
from simsplit.models.transformer import Cut, get_layers
from simsplit.seeds import isolate, rng_for

transformers = pytest.importorskip("transformers")
EVERY = pytest.mark.parametrize("family", IMAGE_FAMILIES)
OWNERS = ("head", "trunk", "tail")
SHAPE, CLASSES = (3, 8, 8), 5
CUTS = [(head, tail) for head in range(LAYERS) for tail in range(LAYERS - head)]


def configure(family="vit", **options):
    small = IMAGE_FAMILIES[family].options if family in IMAGE_FAMILIES else {}
    return transformers.AutoConfig.for_model(family, **IMAGE_SIZES, **(small | options))


@cache
def whole(family):
    return draw(configure(family))


def draw(config):
    with isolate(0, "whole"), torch.no_grad():
        model = transformers.AutoModelForImageClassification.from_config(config).eval()
        for weight in model.parameters():  # norms and biases too, lest a forgotten one goes unseen
            weight.add_(torch.randn(weight.shape) * 0.3)
    return model


def images():
    return torch.randn(2, *SHAPE, generator=rng_for(0, "images"))


def through(parts, x):
    for part in parts:
        x = part(x)
    return x


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Save a small model, as a folder that a scenario names."""
    path = tmp_path_factory.mktemp("vit")
    whole("vit").save_pretrained(path)
    return str(path)


def build(name, classes=CLASSES, **options):
    made = ImageClassifier(name=name, **options).build(SHAPE, classes, seed=0)
    return [part.eval() for part in (made.head, made.trunk, made.tail)]


@EVERY
@pytest.mark.parametrize(("head", "tail"), CUTS)
def test_a_cut_at_each_layer_is_the_whole_model(family, head, tail):
    model = whole(family)
    parts = [
        copy_image_segment(model, owner, Cut(head, tail), get_classifier(model)).train()
        for owner in OWNERS
    ]
    made = []
    for run in (model.train(), lambda x: through(parts, x)):
        with isolate(0, "dropout"):
            out = run(images())
        made.append(getattr(out, "logits", out))
        made[-1].square().sum().backward()
    assert torch.equal(*made)
    ours = [weight.grad for part in parts for weight in part.parameters()]
    theirs = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    assert sorted(map(_sum, ours)) == sorted(map(_sum, theirs))


def _sum(grad):
    return None if grad is None else grad.abs().sum().item()


@pytest.mark.parametrize(("head", "tail"), [(0, 0), (1, 2), (3, 0)])
@torch.no_grad()
def test_a_folder_is_read_by_segments(folder, head, tail):
    parts = build(folder, head=head, tail=tail)
    assert [len(get_layers(part)) for part in parts] == [head, LAYERS - head - tail, tail]
    crossing = parts[0](images())
    assert crossing.shape[1:] == ImageClassifier(name=folder).compute_shapes(SHAPE)[0]
    expected = whole("vit").eval()(images()).logits
    assert torch.equal(through(parts[1:], crossing), expected)


@torch.no_grad()
def test_a_classifier_of_other_classes_is_drawn_by_the_seed(folder):
    parts, again = build(folder, classes=3), build(folder, classes=3)
    assert through(parts, images()).shape == (2, 3)
    assert torch.equal(through(parts, images()), through(again, images()))
    layer, saved = parts[1].layers[0], whole("vit").vit.layers[1]
    assert all(map(torch.equal, layer.parameters(), saved.parameters()))


@torch.no_grad()
def test_a_folder_without_safetensors_is_loaded_whole(tmp_path):
    model = whole("vit")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    expected = model.eval()(images()).logits
    assert torch.equal(through(build(str(tmp_path)), images()), expected)


@torch.no_grad()
def test_adapters_are_the_whole_models(folder):
    peft = pytest.importorskip("peft")
    lora = {"rank": 2, "alpha": 4.0, "targets": ["q_proj", "fc1"]}
    parts = build(folder, tail=1, lora=lora)
    learning = {
        name for part in parts for name, weight in part.named_parameters() if weight.requires_grad
    }
    assert {name for name in learning if "lora_" not in name} == {"reader.weight", "reader.bias"}
    model = draw(configure())
    config = peft.LoraConfig(r=2, lora_alpha=4.0, target_modules=lora["targets"])
    peft.inject_adapter_in_model(config, model)
    layers = [layer for part in parts for layer in get_layers(part)]
    for own, layer in zip(layers, model.vit.layers, strict=True):
        for part in (own.attention.q_proj, own.mlp.fc1):
            part.lora_B["default"].weight.normal_(generator=rng_for(0, "adapters"))
        layer.load_state_dict(own.state_dict())
    expected = model.eval()(images()).logits
    assert torch.equal(through(parts, images()), expected)
    assert not torch.equal(expected, whole("vit").eval()(images()).logits)


def test_a_forgotten_part_is_found(monkeypatch):
    def forget_positions(model, owner, cut, reader):
        made = copied(model, owner, cut, reader)
        if owner == "head":
            made.embeddings.position_embeddings.data.zero_()
        return made

    copied = exactness.copy_image_segment
    monkeypatch.setattr(exactness, "copy_image_segment", forget_positions)
    with pytest.raises(ScenarioError) as caught:
        require_exact_cut(configure(layer_norm_eps=1e-4), "model.name")
    assert says(str(caught.value), "scenario.model.name: vit ... differ")


@pytest.mark.parametrize(
    ("options", "data", "field"),
    [
        ({"head": 4}, {}, "model.head"),
        ({"sizes": {"width": 8}}, {}, "give only one"),
        ({"lora": {"targets": ["nothing"]}}, {}, "model.lora.targets"),
        ({}, {"size": 12}, "model.kind"),
        ({}, {"channels": 1}, "model.kind"),
    ],
)
def test_what_does_not_fit_a_saved_model_is_refused(folder, options, data, field):
    shape = (data.get("channels", 3), *[data.get("size", 8)] * 2)
    with pytest.raises((ScenarioError, ValidationError)) as caught:
        ImageClassifier(name=folder, **options).build(shape, CLASSES, seed=0)
    assert field in str(caught.value)


def test_a_scenario_names_the_field_of_a_misfit(folder, tmp_path):
    for model, field in (
        ({"name": folder}, "model.kind"),  # digits are grey, of 28 pixels
        ({"sizes": {"patch": 5}}, "model.kind"),
        ({"sizes": {"heads": 3}}, "heads"),
        ({"sizes": {"layers": 1}}, "model.sizes.layers"),
    ):
        with pytest.raises(ScenarioError) as caught:
            scenario(model={"kind": "image_classifier", **model})
        assert field in str(caught.value)
    other = transformers.AutoConfig.for_model("convnext")
    other.save_pretrained(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        ImageClassifier(name=str(tmp_path)).compute_shapes(SHAPE)
    assert says(str(caught.value), "scenario.model.name: ... convnext ... allowed: vit")


def test_a_deit_with_a_teacher_has_two_classifiers(tmp_path):
    config = configure("deit", architectures=["DeiTForImageClassificationWithTeacher"])
    draw(config).save_pretrained(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        ImageClassifier(name=str(tmp_path)).build(SHAPE, CLASSES, seed=0)
    assert says(str(caught.value), "scenario.model.name: ... cannot be cut")


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_an_exported_classifier_is_the_librarys_own(lora, tmp_path):
    sizes = {"patch": 7, "width": 16, "layers": 3, "heads": 2}
    model = {"kind": "image_classifier", "sizes": sizes, "tail": 1, "lora": lora}
    adam = {"client": {"kind": "adam", "lr": 0.01}, "server": {"kind": "adam", "lr": 0.01}}
    run_to_end(scenario(model=model, train=adam, schedule={"rounds": 1}), tmp_path / "run")
    trained = load_trained(tmp_path / "run")
    export(trained, tmp_path / "out", "transformers")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out").eval()
    x = torch.randn(2, *trained.facts["sample"])
    with torch.no_grad():
        ours, logits = trained(x), theirs(x).logits
    assert torch.equal(ours, logits) if lora is None else torch.allclose(ours, logits, atol=1e-5)
    assert list(theirs.config.id2label.values()) == trained.classes
    assert not torch.allclose(logits[0], logits[1], atol=1e-4)


def test_a_run_trains_adapters_and_its_network_is_read_back(tmp_path):
    sizes = {"patch": 7, "width": 16, "layers": 3, "heads": 2}
    model = {"kind": "image_classifier", "sizes": sizes, "tail": 1, "lora": {"rank": 2}}
    made = run_to_end(
        scenario(model=model, train={"checkpointing": True}, schedule={"rounds": 1}),
        tmp_path / "run",
    )
    trained = load_trained(tmp_path / "run")
    weights = made.parts.server.learner.weights()
    assert weights
    assert all("lora_" in name for name in weights)
    name = "layers.0.attention.q_proj.lora_B.default.weight"
    assert weights[f"trunk.{name}"].abs().sum() > 0
    assert torch.equal(trained.trunk.state_dict()[name], weights[f"trunk.{name}"])
