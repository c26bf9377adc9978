"""MixGuard by hand: what is mixed, what comes back, what is learned where, and what is noised."""

import pytest
import torch
from torch import nn

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.legs import Leg
from simsplit.methods.method import Site, Step
from simsplit.methods.mixguard import CALIBRATE, REFINE, Mixguard, MixguardConfig
from simsplit.methods.secret_tokens import insert_tokens
from simsplit.seeds import rng_for

WIDTH, WORDS, PAD = 8, 50, 0
EXACT = {"tokens": 0, "noise": "none"}
LENGTHS = torch.tensor([5, 3, 4, 5])


class Public:
    """Texts of seven words, other ones in each step."""

    vocabulary, pad = WORDS, PAD

    def draw_support(self, count: int, rows: int, rng: torch.Generator) -> list[Batch]:
        ids = torch.randint(1, WORDS, (count, rows, 7), generator=rng)
        return [Batch(each, each, torch.arange(rows)) for each in ids]


def mixguard(**fields) -> Mixguard:
    site = Site("client", Leg.SMASHED, (16, WIDTH), 0, torch.device("cpu"))
    made = MixguardConfig(**fields).build(site)
    assert isinstance(made, Mixguard)
    if made.module is not None:
        made.module.double()
    return made


def texts(rows: int = 4, length: int = 5) -> Batch:
    ids = torch.randint(1, WORDS, (rows, length), generator=rng_for(0, "ids"))
    labels = ids.roll(-1, 1)
    labels[:, -1] = IGNORED
    labels[:, :2] = IGNORED
    return Batch(ids, labels, torch.arange(rows))


def step(number: int = 0, phase: str = "train", **fields) -> Step:
    return Step(0, 1, number, 5, phase=phase, stock=Public(), **fields)


def build_embedding() -> nn.Module:
    table = nn.Embedding(WORDS, WIDTH)
    with torch.no_grad():
        table.weight.copy_(torch.randn(WORDS, WIDTH, generator=rng_for(0, "table")))
    return table.double()


def linear(offset: float = 0.0) -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH).double()
    with torch.no_grad():
        layer.weight.copy_(torch.randn(WIDTH, WIDTH, generator=rng_for(0, "trunk")))
        layer.bias.fill_(offset)
    return layer


def through(method: Mixguard, trunk: nn.Module, at: Step, head: nn.Module | None = None):
    """Send a batch through; return what comes back, and the batch as it was sent."""
    head = head or build_embedding()
    sent = method.transform(texts(), at)
    return method.decode(trunk(method.encode(head(sent.inputs), at)), at), sent


@pytest.mark.parametrize(("messages", "inputs"), [(3, 3), (3, 10), (5, 3), (9, 3)])
@pytest.mark.parametrize("sampler", ["general", "affine"])
@pytest.mark.parametrize("secrets", ["batch", "sample"])
def test_a_linear_trunk_gives_the_plain_output(messages, inputs, sampler, secrets):
    drawn = {"sampler": sampler, "secrets": secrets}
    method = mixguard(messages=messages, inputs=inputs, calibrate=False, **drawn, **EXACT)
    back, _ = through(method, linear(), step())
    plain = linear()(build_embedding()(texts().inputs))
    torch.testing.assert_close(back[:, :5], plain, rtol=0, atol=1e-10)


def test_each_text_has_weights_of_its_own_if_secrets_are_drawn_for_each():
    method, at = mixguard(secrets="sample", calibrate=False, **EXACT), step()
    method.transform(texts(), at)
    weights = at.memo[method].secrets.decode
    assert weights.shape == (3, 4)
    assert len({tuple(each.round(6)) for each in weights.T}) == 4


@pytest.mark.parametrize("sampler", ["general", "affine"])
def test_an_affine_trunk_does_so_under_affine_secrets_alone(sampler):
    back, _ = through(mixguard(sampler=sampler, calibrate=False, **EXACT), linear(2.0), step())
    error = (back[:, :5] - linear(2.0)(build_embedding()(texts().inputs))).abs().max()
    assert (error < 1e-10) == (sampler == "affine")


def test_m_times_the_rows_cross_and_no_message_is_the_texts_own():
    method, at = mixguard(messages=5, inputs=4, **EXACT), step()
    sent = method.transform(texts(), at)
    assert sent.inputs.shape == (16, 7)  # as long as the longest among k
    assert sent.labels.shape == (4, 7)
    assert (sent.labels[:, 5:] == IGNORED).all()
    z = method.encode(build_embedding()(sent.inputs), at)
    assert z.shape == (20, 7, WIDTH)
    plain = build_embedding()(texts().inputs)
    messages = z.unflatten(0, (5, 4))[:, :, :5]
    near = nn.functional.cosine_similarity(messages.flatten(2), plain.flatten(1), dim=-1)
    assert near.abs().max() < 0.95


def test_other_steps_have_other_secrets_and_the_same_one_the_same():
    def first(at: Step):
        method = mixguard(**EXACT)
        return method.encode(build_embedding()(method.transform(texts(), at).inputs), at)

    assert torch.equal(first(step()), first(step()))
    for other in (step(1), step(phase="other"), step(training=False)):
        assert not torch.equal(first(step()), first(other))


def test_gradient_messages_are_the_weights_times_one_gradient():
    method, at = mixguard(calibrate=False, **EXACT), step()
    sent = method.transform(texts(), at)
    u = linear()(method.encode(build_embedding()(sent.inputs), at)).detach().requires_grad_()
    slope = torch.randn(4, 7, WIDTH, generator=rng_for(0, "slope"), dtype=torch.float64)
    (method.decode(u, at) * slope).sum().backward()
    weights = torch.from_numpy(at.memo[method].secrets.decode)
    expected = weights[:, None, None, None] * slope
    torch.testing.assert_close(u.grad.unflatten(0, (3, 4)), expected)


@pytest.mark.parametrize("phase", [CALIBRATE, REFINE])
def test_public_steps_send_the_plain_rows_as_well_and_teach_calibration_alone(phase):
    method, at, head = mixguard(tokens=6, dropout=0), step(phase=phase), build_embedding()
    sent = method.transform(texts(), at)
    assert sent.inputs.shape == (12, 7), "no secret tokens on public texts"
    z = method.encode(head(sent.inputs), at)
    assert z.shape == (16, 7, WIDTH)
    assert torch.equal(z[12:, :5], head(texts().inputs))
    trunk = nn.Sequential(linear(), nn.Tanh(), linear())
    u = trunk(z)
    corrected = method.decode(u, at)
    error = method.compute_tail_loss(at)
    five = (corrected - u[12:])[:, :5]  # the support's seven words are padding to these
    assert error.item() == pytest.approx(five.square().mean().item())
    error.backward()
    assert all(weight.grad is None for weight in (*head.parameters(), *trunk.parameters()))
    assert method.module.up.weight.grad.abs().sum() > 0


def test_calibration_does_not_learn_in_private_steps_but_gradients_pass_it():
    method, at = mixguard(**EXACT), step()
    nn.init.normal_(method.module.up.weight, generator=rng_for(0, "up"))
    head = build_embedding()
    back, _ = through(method, linear(), at, head)
    assert method.compute_tail_loss(at) is None
    back.sum().backward()
    assert all(weight.grad is None for weight in method.module.parameters())
    assert head.weight.grad.abs().sum() > 0


@pytest.mark.slow
def test_calibration_brings_back_what_a_trunk_that_is_not_linear_spoils():
    method = mixguard(tokens=0, noise="none", sampler="affine", dropout=0)
    trunk = nn.Sequential(linear(), nn.Tanh(), linear())
    before = errors(method, trunk, range(200, 260))
    optimizer = torch.optim.Adam(method.module.parameters(), 0.01)
    for number in range(200):
        at = step(number, CALIBRATE)
        through(method, trunk, at)
        optimizer.zero_grad()
        method.compute_tail_loss(at).backward()
        optimizer.step()
    after = errors(method, trunk, range(200, 260))
    assert after.median() < 0.85 * before.median()


def errors(method: Mixguard, trunk: nn.Module, numbers: range) -> torch.Tensor:
    """Compute how far public texts are from their plain output."""
    results = []
    for number in numbers:
        at = step(number, CALIBRATE)
        through(method, trunk, at)
        results.append(method.compute_tail_loss(at).detach())
    return torch.stack(results)


@pytest.mark.parametrize("noise", ["adaptive", "fixed", "none"])
def test_noise_is_as_large_as_the_correction_and_the_gradient(noise):
    method, at = mixguard(tokens=0, gamma=0.5, noise=noise), step()
    nn.init.normal_(method.module.up.weight, generator=rng_for(0, "up"))
    sent = method.transform(texts(400), at)
    z = method.encode(build_embedding()(sent.inputs), at)
    u = linear()(z).detach().requires_grad_()
    corrected = method.decode(u, at)
    weights = torch.from_numpy(at.memo[method].secrets.decode)
    unmixed = torch.tensordot(weights, u.detach().unflatten(0, (3, 400)), 1)
    slope = torch.randn(400, 7, WIDTH, generator=rng_for(0, "slope"), dtype=torch.float64)
    (corrected * slope).sum().backward()
    frozen = method.module
    leaf = unmixed.clone().requires_grad_()
    (frozen(leaf) * slope).sum().backward()
    added = u.grad.unflatten(0, (3, 400))[0] / weights[0] - leaf.grad
    assert added[:, 5:].abs().max() < 1e-12, "no noise on padding"
    rms = lambda x: x[:, :5].square().mean((1, 2)).sqrt()  # noqa: E731
    part = rms((corrected - unmixed).detach()) / rms(corrected.detach())
    wanted = {
        "adaptive": 0.5 * part * rms(leaf.grad),
        "fixed": 0.5 * rms(leaf.grad),
        "none": torch.zeros(400, dtype=torch.float64),
    }[noise]
    torch.testing.assert_close(rms(added).mean(), wanted.mean(), rtol=0.02, atol=1e-12)
    if noise == "adaptive":  # text by text
        assert torch.corrcoef(torch.stack([rms(added), wanted]))[0, 1] > 0.5


PLAIN, CALIBRATED, MIXED = "plain", "calibrated", "mixed"


@pytest.mark.parametrize(
    ("fields", "reading", "wanted"),
    [
        ({}, "", PLAIN),
        ({"calibrated_inference": True}, "", CALIBRATED),
        ({"inference": "mixed"}, "", MIXED),
        ({}, "calibrated", CALIBRATED),
        ({}, "mixed", MIXED),
        ({"inference": "mixed"}, "plain", PLAIN),
        ({"inference": "mixed"}, "without_trunk", MIXED),
        ({"inference": "mixed", "calibrated_inference": False}, "", "unmixed"),
    ],
)
def test_evaluation_is_plain_unless_it_is_asked_for_otherwise(fields, reading, wanted):
    method = mixguard(tokens=0, **fields)
    nn.init.normal_(method.module.up.weight, generator=rng_for(0, "up"))
    at, batch = step(training=False, evaluation_mode=reading), texts()
    mixes = wanted in (MIXED, "unmixed")
    assert (method.transform(batch, at) is batch) != mixes
    back, sent = through(method, linear(), at)
    assert len(sent.inputs) == (12 if mixes else 4)
    plain = linear()(build_embedding()(texts().inputs))
    corrected = wanted in (CALIBRATED, MIXED)
    with torch.no_grad():
        torch.testing.assert_close(back[:, :5], method.module(plain) if corrected else plain)


class TestPadding:
    """However much of it is appended, nothing that is learned or noised changes."""

    def batch(self, more: int) -> Batch:
        given = texts()
        cut = torch.arange(5) < LENGTHS[:, None]
        ids = nn.functional.pad(given.inputs.where(cut, PAD), (0, more), value=PAD)
        labels = nn.functional.pad(given.labels.where(cut, IGNORED), (0, more), value=IGNORED)
        return Batch(ids, labels, given.indices, lengths=LENGTHS)

    def train(self, more: int, phase: str = "train", **fields):
        """Take a step; return method, step, features, and gradients of features and trunk."""
        method = mixguard(tokens=0, dropout=0, **fields)
        nn.init.normal_(method.module.up.weight, generator=rng_for(0, "up"))
        at, trunk = step(phase=phase), linear(2.0)
        sent = method.transform(self.batch(more), at)
        made = trunk(method.encode(build_embedding()(sent.inputs), at))
        u = made.detach().requires_grad_()
        corrected = method.decode(u, at)
        if phase == "train":
            real = torch.arange(corrected.shape[1]) < LENGTHS[:, None]
            (corrected**3)[real].sum().backward()
            (share,) = method.split_gradient(u.grad, at)
            made.backward(share.grad)
            return share.grad, trunk.weight.grad
        method.compute_tail_loss(at).backward()
        return method.compute_tail_loss(at), method.module.down.weight.grad

    @pytest.mark.parametrize("phase", [CALIBRATE, REFINE])
    def test_calibration_learns_the_same(self, phase):
        (few, learned), (many, as_well) = (self.train(more, phase) for more in (0, 9))
        assert torch.equal(few, many)
        torch.testing.assert_close(learned, as_well, rtol=1e-12, atol=0)

    @pytest.mark.parametrize(
        "noise", [{"noise": "adaptive"}, {"noise": "fixed"}, {"message_noise": 0.5}], ids=str
    )
    def test_gradients_of_real_words_are_the_same_and_those_of_padding_zero(self, noise):
        (few, learned), (many, as_well) = (self.train(more, **noise) for more in (0, 9))
        torch.testing.assert_close(few, many[:, : few.shape[1]], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(learned, as_well, rtol=1e-12, atol=0)
        padding = torch.arange(many.shape[1]) >= LENGTHS[:, None]
        assert not many[padding.repeat(3, 1)].any()
        assert many[~padding.repeat(3, 1)].all()

    def test_it_is_known_from_the_texts_lengths_and_secret_words_are_none(self):
        own, given = self.batch(2), insert_tokens(self.batch(2), 6, WORDS, rng_for(0, "draws"))[0]
        assert torch.equal(own.real.sum(1), LENGTHS)
        assert torch.equal(given.real.sum(1), LENGTHS + 6)
        assert (given.inputs[~given.real] == PAD).all()


class TestSecretTokens:
    """Where they stand, and that they change nothing else."""

    def insert(self, count: int, batch: Batch | None = None):
        batch = batch or texts(300, 9)
        return batch, *insert_tokens(batch, count, WORDS, rng_for(0, "draws"))

    def test_a_texts_own_words_and_labels_stay_in_order(self):
        batch, changed, own = self.insert(6)
        assert changed.inputs.shape == own.shape == (300, 15)
        assert (own.sum(1) == 9).all()
        assert torch.equal(changed.inputs[own].view(300, 9), batch.inputs)
        assert torch.equal(changed.labels[own].view(300, 9), batch.labels)
        assert (changed.labels[~own] == IGNORED).all()

    def test_they_stand_after_the_first_word_and_before_what_is_learned(self):
        _, _, own = self.insert(6)
        assert own[:, 0].all()
        assert own[:, 8:].all()  # two words are shown, and six secret ones among them
        assert (~own[:, 1:8]).any(0).all()

    def test_they_stand_anywhere_where_everything_is_learned(self):
        batch = texts(300, 9)
        batch.labels[:, :2] = batch.inputs[:, 1:3]
        _, _, own = self.insert(6, batch)
        assert (~own[:, 1:14]).any(0).all()
        assert own[:, 0].all()
        assert own[:, 14].all(), "of the last word nothing is learned"

    def test_they_are_of_the_whole_vocabulary_and_none_change_nothing(self):
        batch, changed, own = self.insert(6)
        assert changed.inputs[~own].unique().numel() == WORDS
        same, kept = insert_tokens(batch, 0, WORDS, rng_for(0, "draws"))
        assert same is batch
        assert kept.all()


class TestOptionsThatThePaperLacks:
    """What may be done against gradients that give the weights away."""

    def exchange_gradients(self, **fields):
        method, at = mixguard(calibrate=False, **EXACT, **fields), step()
        head, trunk = build_embedding(), linear()
        sent = method.encode(head(method.transform(texts(), at).inputs), at)
        arrived = sent.detach().requires_grad_()
        back = trunk(arrived)
        features = back.detach().requires_grad_()
        (method.decode(features, at)[:, :5] ** 3).sum().backward()
        (share,) = method.split_gradient(features.grad, at)
        back.backward(share.grad)
        reply = method.unpack((arrived.grad,), at)
        sent.backward(reply)
        return features.grad, share.grad, head.weight.grad

    def test_remixed_gradients_have_other_weights_and_teach_the_head_the_same(self):
        plain, sent, learned = self.exchange_gradients()
        assert torch.equal(plain, sent)
        meant, remixed, as_well = self.exchange_gradients(gradients="remixed")
        torch.testing.assert_close(meant, plain)
        torch.testing.assert_close(as_well, learned)
        true, seen = (x.unflatten(0, (3, -1)).flatten(1).norm(dim=1) for x in (meant, remixed))
        assert abs(torch.cosine_similarity(true, seen, dim=0)) < 0.99

    def test_noise_on_messages_is_each_ones_own(self):
        plain, sent, _ = self.exchange_gradients(message_noise=0.5)
        off = (sent - plain).unflatten(0, (3, -1)).flatten(1)
        sizes = plain.unflatten(0, (3, -1)).flatten(1).square().mean(1).sqrt()
        assert torch.allclose(
            off.square().mean(1).sqrt() / sizes, torch.tensor(0.5).double(), rtol=0.4
        )
        assert torch.linalg.matrix_rank(off) == 3


class TestGain:
    """One factor on the decoded change, which the client fits on public texts."""

    def decode_planted(self, method: Mixguard, at: Step, amplified: float, noise: float = 0.0):
        """Decode replies whose change is the true one times a factor, plus noise.

        Return what comes back, the head's output, the true output, and what decoding alone gives.
        """
        batch = Batch(texts().inputs, texts().labels, torch.arange(4), lengths=LENGTHS)
        sent = method.transform(batch, at)
        z = method.encode(build_embedding()(sent.inputs), at)
        made = build_embedding()(sent.inputs).unflatten(0, (3, 4))[at.memo[method].secrets.target]
        rng = rng_for(at.number, "planted")
        change, off = (torch.randn(*made.shape, generator=rng).to(made) for _ in range(2))
        change[~at.memo[method].real] = 1e3  # a reply to padding counts for nothing
        decoded = amplified * change + noise * off
        # Affine weights sum to one, so what is added to all messages is added to the features.
        replies = z[:12] + decoded.repeat(3, 1, 1)
        public = len(z) > 12
        u = torch.cat([replies, made + change]) if public else replies
        back = method.decode(u, at)
        return back, made.detach(), (made + change).detach(), (made + decoded).detach()

    def test_a_planted_factor_is_taken_away_exactly(self):
        method = mixguard(gain="learned", dropout=0, **EXACT)
        at = step(phase=CALIBRATE)
        self.decode_planted(method, at, amplified=2.5)
        assert method.compute_tail_loss(at).item() == pytest.approx(0, abs=1e-20)
        back, made, true, _ = self.decode_planted(method, step(1), amplified=2.5)
        torch.testing.assert_close(back, true)
        other, made, true, _ = self.decode_planted(method, step(2), amplified=1.0)
        torch.testing.assert_close(other, made + (true - made) / 2.5)

    def test_it_is_that_of_least_squares_over_all_public_tokens(self):
        method, decoded, wanted = mixguard(gain="learned", dropout=0, **EXACT), [], []
        for number in range(5):
            at = step(number, REFINE)
            _, made, true, near = self.decode_planted(method, at, 1.7, noise=2.0)
            real = at.memo[method].real
            decoded.append((near - made)[real].flatten())
            wanted.append((true - made)[real].flatten())
        (gain,) = torch.linalg.lstsq(torch.cat(decoded)[:, None], torch.cat(wanted)).solution
        product, square = method.module.gain.sums
        assert (product / square).item() == pytest.approx(gain.item(), rel=1e-12)
        assert 0.1 < gain < 0.4

    def test_private_texts_teach_it_nothing_and_before_public_ones_it_is_one(self):
        method = mixguard(gain="learned", **EXACT)
        back, *_, near = self.decode_planted(method, step(), amplified=2.0)
        torch.testing.assert_close(back, near)
        assert not method.module.gain.sums.any()

    def test_gradients_of_messages_have_nothing_of_it(self):
        sent = []
        for fields in ({}, {"gain": "learned"}):
            method, at = mixguard(dropout=0, **fields, **EXACT), step(number=3)
            if fields:
                self.decode_planted(method, step(phase=CALIBRATE), amplified=2.5)
            made = method.encode(build_embedding()(method.transform(texts(), at).inputs), at)
            u = linear()(made).detach().requires_grad_()
            slope = torch.randn(4, 7, WIDTH, generator=rng_for(0, "slope"), dtype=torch.float64)
            (method.decode(u, at) * slope).sum().backward()
            sent.append(u.grad)
        assert torch.equal(*sent)

    def test_texts_that_are_mixed_in_evaluation_have_it_too(self):
        method = mixguard(gain="learned", dropout=0, inference="mixed", **EXACT)
        self.decode_planted(method, step(phase=CALIBRATE), amplified=2.5)
        back, _, true, _ = self.decode_planted(method, step(1, training=False), amplified=2.5)
        torch.testing.assert_close(back, true)

    def test_without_it_the_state_and_the_features_are_as_before(self):
        method = mixguard(dropout=0, **EXACT)
        assert set(method.module.state_dict()) == {
            f"{layer}.{part}" for layer in ("down", "up") for part in ("weight", "bias")
        }
        back, *_, near = self.decode_planted(method, step(), amplified=2.0)
        torch.testing.assert_close(back, near)

    @pytest.mark.parametrize(
        "fields", [{"calibrate": False}, {"warm_up": 0, "refine_every": 0}], ids=str
    )
    def test_it_needs_public_steps(self, fields):
        with pytest.raises(ValueError, match="gain"):
            MixguardConfig(gain="learned", **fields)
