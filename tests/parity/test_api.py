"""A fine-tuning API: training is peft's on the whole model, and every byte is known beforehand."""

import pytest
import torch
import transformers
from builders import StopAt, run_to_end
from comparing import assert_equal
from gists import says
from hosted import on_hosts
from pace import quick
from texts import LORA, api_scenario

from simsplit.data.batches import draw_batches
from simsplit.data.texts import TextBatcher
from simsplit.errors import ScenarioError
from simsplit.experiment import Experiment
from simsplit.models.served_trunk import Adapters, Served
from simsplit.models.whole import build_config
from simsplit.results import Run
from simsplit.scenario import Scenario

FAMILIES = quick(["bert", "roberta", "deberta-v2", "llama", "qwen3", "gpt2", "t5"], "bert", "llama")


class Whole(torch.nn.Module):
    """The library's own model with peft's adapters, with the weights that the parts start from."""

    def __init__(self, given: Scenario, classes: int) -> None:
        import peft  # here, since it takes seconds, and one test alone needs it

        super().__init__()
        config = build_config(given.model.sizes)
        config.num_labels = classes
        self.family = given.model.sizes.family
        parts = given.model.build((given.data.source.length,), classes, given.seed)
        kind = transformers.AutoModelForSequenceClassification
        self.model = (
            transformers.T5EncoderModel(config) if self.family == "t5" else kind.from_config(config)
        )
        self.body = self.model.encoder if self.family == "t5" else self.model.base_model
        self.reader = parts.tail.reader
        _share(self.body, parts.trunk)
        names = [name.removesuffix(".lora_A.default.weight") for name in parts.trunk.layout]
        lora = peft.LoraConfig(
            r=LORA["rank"],
            lora_alpha=LORA["alpha"],
            target_modules=[name for name in names if not name.endswith("weight")],
            fan_in_fan_out=self.family == "gpt2",
        )
        peft.inject_adapter_in_model(lora, self.body)
        self._start(parts.head)

    def _start(self, head: Adapters) -> None:
        own = dict(self.body.named_parameters())
        self.body.requires_grad_(False)
        for name, weight in head.sets[0].items():
            own[name.replace("/", ".")].data.copy_(weight.data)
            own[name.replace("/", ".")].requires_grad_(True)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.family in ("bert", "roberta", "deberta-v2"):
            states = self.body(input_ids=ids, attention_mask=mask).last_hidden_state
            return self.reader(states)
        states = self.body(input_ids=ids, attention_mask=mask).last_hidden_state
        last = mask.sum(1) - 1
        pooled = states[torch.arange(len(ids)), last]
        return self.reader(pooled[:, None])[:, 0]


def _share(body: torch.nn.Module, served: Served) -> None:
    """Copy the served weights to a body without adapters; a pooler is the client's."""
    plain = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in served.body.state_dict().items()
        if ".lora_" not in name
    }
    missing, unexpected = body.load_state_dict(plain, strict=False)
    assert not unexpected
    assert all("pooler" in name for name in missing)


def train_whole(given: Scenario) -> Whole:
    """Train adapters and head for two epochs by one optimizer, on one client's batches."""
    data = given.prepare_data()
    model = Whole(given, data.info.classes)
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = given.train.client.build(list(dict.fromkeys(learned)))
    batcher = TextBatcher(data.train)
    model.eval()
    for epoch in range(2):
        part = torch.as_tensor(data.parts[0])
        for rows in draw_batches(part, 8, given.seed, 0, epoch, drop_last=False):
            batch = batcher.batch(rows)
            mask = batch.real if batch.mask is None else batch.mask
            out = model(batch.inputs, mask.long())
            loss = torch.nn.functional.cross_entropy(out, batch.labels.amax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_training_over_the_api_is_pefts_on_the_whole_model_to_the_bit(family, tmp_path):
    given = api_scenario(tmp_path, family, clients={"count": 1})
    expected = train_whole(given)
    run = run_to_end(given, tmp_path / "run")
    client = run.parts.pool.clients[0].training.end
    own = dict(expected.body.named_parameters())
    moved = 0
    for name, weight in client.head.sets[0].items():
        assert torch.equal(weight, own[name.replace("/", ".")]), name
        moved += int(weight.count_nonzero() > 0 and ".lora_B".replace(".", "/") in name)
    assert moved, "no B matrix has learned"
    for name, weight in client.tail.reader.state_dict().items():
        assert torch.equal(weight, expected.reader.state_dict()[name]), name


def test_bytes_are_those_of_the_closed_form(tmp_path):
    sets = 3
    given = api_scenario(
        tmp_path, model={"adapters": sets}, clients={"count": 1}, method=[{"kind": "raw"}]
    )
    run = Run.load(run_to_end(given, tmp_path / "run").path)
    wire = run.wire[run.wire["phase"] == "train"].groupby("leg")["bytes"].sum()
    width, layers, rank = 16, 2, LORA["rank"]
    pairs = 4 * [(width, width)] + 2 * [(width, 3 * width)] + [(3 * width, width)]
    numbers = layers * rank * sum(a + b for a, b in pairs)
    texts = 60 * 2  # of two epochs
    steps = -(-60 // 8) * 2
    tokens = _tokens(given)
    assert wire["inputs"] == tokens * (4 + 1)
    assert wire["adapters"] == wire["adapters_grad"] == steps * sets * numbers * 4
    assert wire["features"] == wire["features_grad"] == texts * sets * width * 4
    assert set(wire.index) == {"inputs", "adapters", "features", "features_grad", "adapters_grad"}
    assert run.rounds["bytes_plain"].sum() == wire.sum()


def _tokens(given: Scenario) -> int:
    """Count the places in all batches of two epochs, padding included."""
    data = given.prepare_data()
    batcher, part = TextBatcher(data.train), torch.as_tensor(data.parts[0])
    epochs = [draw_batches(part, 8, given.seed, 0, epoch, drop_last=False) for epoch in range(2)]
    return sum(batcher.batch(rows).inputs.numel() for rows in sum(epochs, ()))


def test_a_client_without_adapters_sends_no_gradient(tmp_path):
    given = api_scenario(tmp_path, model={"learns": ["tail"]}, method=["raw"])
    run = Run.load(run_to_end(given, tmp_path / "run").path)
    sent = run.wire[run.wire["bytes"] > 0]
    assert set(sent["leg"]) == {"inputs", "features"}
    assert run.rounds["train_loss"].iloc[1] < run.rounds["train_loss"].iloc[0]
    trained = sent[sent["phase"] == "train"]
    assert run.rounds["bytes_plain"].sum() == trained["bytes"].sum()


@pytest.mark.slow
def test_a_run_stopped_and_resumed_is_one_never_stopped(tmp_path):
    given = api_scenario(tmp_path, model={"adapters": 2}, method=[{"kind": "p3eft"}])
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_to_end(given, whole)
    with pytest.raises(KeyboardInterrupt):
        Experiment(given, cut, [StopAt(9)]).run(resume=False)
    Experiment(given, cut).run(resume=True)
    assert_equal(whole, cut)


@pytest.mark.ray
def test_hosts_give_what_one_process_gives(tmp_path, hosts):
    given = api_scenario(tmp_path, model={"adapters": 2}, method=[{"kind": "p3eft"}])
    run_to_end(given, tmp_path / "inline")
    on_hosts(given, tmp_path / "hosts", hosts).run(resume=False)
    assert_equal(tmp_path / "inline", tmp_path / "hosts")


DEFENCES = {
    "randomised_response": ["labels_changed"],
    "distance_correlation": ["dcor", "dcor_left_out"],
    "pslf": ["labels_flipped", "pseudo_accuracy"],
    "marvell": ["sum_kl", "noise_power", "marvell_left_out"],
    "max_norm": [],
    "cae": ["cae_confusion", "cae_decoded"],
    "discrete_sgd": [],
    "grad_perturb": ["perturbed"],
    "private_backprop": [],
}


def two_adapters(path, *methods):
    given = api_scenario(path, model={"adapters": 2}, method=[*methods], clients={"count": 1})
    return Run.load(run_to_end(given, path / "run").path)


@pytest.fixture(scope="module")
def undefended(tmp_path_factory):
    """The losses of a run without a defence."""
    return two_adapters(tmp_path_factory.mktemp("plain")).rounds["train_loss"].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    quick(DEFENCES, "randomised_response", "pslf", "marvell", "private_backprop"),
)
def test_defences_of_labels_change_what_is_learned_and_tell_of_it(kind, tmp_path, undefended):
    """But for the gradient that is sent privately, which is the same in the end."""
    made = two_adapters(tmp_path, {"kind": kind})
    same = made.rounds["train_loss"].tolist() == pytest.approx(undefended, rel=1e-5)
    assert same == (kind == "private_backprop")
    assert made.clients[DEFENCES[kind]].notna().all(axis=None)
    if kind in ("randomised_response", "pslf"):
        (entry,) = made.summary["privacy"]
        assert (entry["epsilon"], entry["times_sent"]) == (1.0, 2)


@pytest.mark.slow
def test_every_server_that_is_asked_gets_tokens_and_adapters(tmp_path):
    made = {}
    for servers in (1, 2, 5):
        given = api_scenario(
            tmp_path,
            clients={"count": 1},
            servers=servers,
            schedule={"rounds": 1},
            method=[{"kind": "private_backprop", "messages": 3}],
        )
        run = Run.load(run_to_end(given, tmp_path / f"with {servers}").path)
        trained = run.wire[run.wire["phase"] == "train"]
        made[servers] = trained.groupby("leg")["bytes"].sum()
    for leg in ("inputs", "adapters"):
        assert [made[servers][leg] / made[1][leg] for servers in made] == [1, 2, 3]
    for leg in ("features", "features_grad", "adapters_grad"):
        assert len({made[servers][leg] for servers in made}) == 1
    assert made[1]["adapters_grad"] == 3 * made[1]["adapters"]


@pytest.mark.parametrize(
    ("changes", "gist"),
    [
        ({"model": {"lora": None}}, "model.lora: got null"),
        ({"model": {"lora": {"dropout": 0.1}}}, "model.lora.dropout: must be 0, got 0.1"),
        ({"model": {"lora": {"targets": []}}}, "model.lora.targets: "),
        ({"model": {"learns": ["head"]}}, "model.learns: ... tail ... ['head']"),
        ({"model": {"learns": ["tail"], "adapters": 2}}, "model.adapters: must be 1, got 2"),
        ({"model": {"adapters": 0}}, "model.adapters: ... at least 1"),
        ({"topology": "u_shaped"}, "topology: got u_shaped, "),
        ({"aggregation": "splitfed_v1"}, "aggregation: got splitfed_v1; it needs smashed data"),
        ({"method": [{"kind": "noise"}]}, "method.0.kind: noise ... smashed"),
        ({"attacks": ["sip"], "data": {"auxiliary": 0.2}}, "attacks.0.kind: sip needs smashed"),
        ({"servers": 2, "topology": "u_shaped"}, "servers: got 2; only topology: api"),
        (
            {"method": [{"kind": "p3eft", "mixing": True}]},
            "method.0.mixing: ... true",
        ),
        (
            {"method": [{"kind": "p3eft", "alpha": 0}]},
            "method.0.alpha: ... 0.0",
        ),
        (
            {"method": [{"kind": "p3eft", "alpha": 0, "mixing": False}]},
            "method.0: mixing: false, alpha: 0 and messages: 1",
        ),
        (
            {"model": {"learns": ["tail"]}, "method": ["private_backprop"]},
            "method.0.kind: private_backprop",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else value.split(":")[0],
)
def test_what_an_api_cannot_do_is_refused_by_path(tmp_path, changes, gist):
    with pytest.raises(ScenarioError) as refused:
        api_scenario(tmp_path, **changes)
    assert says(str(refused.value), f"scenario.{gist}")


def test_layers_that_do_not_exist_have_no_adapters(tmp_path):
    given = api_scenario(tmp_path, model={"lora": {"targets": ["querry"]}})
    with pytest.raises(ScenarioError, match=r"^scenario.model.lora.targets: unknown 'querry'"):
        run_to_end(given, tmp_path / "run")


@pytest.mark.parametrize(("messages", "servers", "replies"), [(1, 1, 1), (3, 1, 3), (3, 2, 2)])
def test_simulated_time_knows_of_each_servers_backward_passes(messages, servers, replies, tmp_path):
    method = [{"kind": "private_backprop", "messages": messages}]
    given = api_scenario(tmp_path, servers=servers, method=method, schedule={"rounds": 0})
    assert run_to_end(given, tmp_path / "run").live.flops.replies == replies
