"""What a client's owner may change in a resumed run, and what its samples have lost."""

from builders import scenario
from gists import says

from simsplit.deploy.site_setup import make_site
from simsplit.deploy.terms import digest_resumable, digest_terms

MODE = "private"


def private(**changes):
    owned = {"kind": "simplecnn", "cut": "l1h", "learns": ["head", "tail"]}
    dp = {"clip": 1.0, "multiplier": 2.0}
    return scenario(model=owned, train={"dp": dp}, **changes)


def test_a_larger_budget_is_other_terms_and_the_same_run():
    small, large = (private(stop={"epsilon": each}) for each in (5, 9))
    assert digest_terms(small, MODE) != digest_terms(large, MODE)
    assert digest_resumable(small, MODE) == digest_resumable(large, MODE)
    other = private(stop={"epsilon": 5}, seed=7)
    assert digest_resumable(small, MODE) != digest_resumable(other, MODE)
    assert digest_resumable(small, MODE) != digest_resumable(small, "rehearsal")


def test_a_site_says_what_its_samples_have_lost(tmp_path):
    site = make_site(private(stop={"epsilon": 5}), 0, tmp_path / "own", MODE)
    assert says(site.describe_spending(), "epsilon 0 ... budget of 5")
    training = site.client.training
    training.taken["private"] = training.steps_per_epoch("private")
    lost = f"{training.account.compute(1):.4g}"
    assert lost in site.describe_spending()
    plain = make_site(scenario(), 0, tmp_path / "plain", MODE)
    assert plain.describe_spending() == ""
