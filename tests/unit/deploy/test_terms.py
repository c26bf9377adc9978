"""What may be deployed, what parties agree on, and the files that prove who they are."""

import stat
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import torch
from builders import TINY
from gists import gist
from texts import api_scenario, text_scenario

from simsplit.deploy.join_check import check_join
from simsplit.deploy.keys import check_validity, load_keys, make_keys, read_owner
from simsplit.deploy.server_run import find_differences
from simsplit.deploy.site_setup import load_own_data, load_secret, make_site
from simsplit.deploy.terms import describe_machine, digest_terms, refuse_undeployable
from simsplit.errors import DataError, RunError, ScenarioError
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge


def scenario(**changes: Any) -> Scenario:
    return parse(merge(TINY, changes))


class TestWhatIsOfSimulationsAlone:
    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            (
                {"clients": {"malicious": {"ids": [1], "poison": [{"kind": "badnets"}]}}},
                "clients.malicious",
            ),
            ({"attacks": [{"kind": "unsplit"}]}, "attacks"),
            (
                {
                    "cohort": {"deadline_s": 1.0},
                    "network": {"device": "phone", "link": "lte"},
                },
                "cohort.deadline_s",
            ),
            ({"cohort": {"dropout": 0.2}}, "cohort.dropout"),
            ({"schedule": {"rounds": None, "epochs": 2}}, "schedule.epochs"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_is_refused_by_path(self, changes, field):
        with pytest.raises(ScenarioError) as refused:
            refuse_undeployable(scenario(**changes))
        assert [each.field for each in refused.value.problems] == [field]

    def test_several_servers_neither(self, tmp_path):
        refuse_undeployable(api_scenario(tmp_path))
        with pytest.raises(ScenarioError) as refused:
            refuse_undeployable(api_scenario(tmp_path, servers=2))
        assert [each.field for each in refused.value.problems] == ["servers"]

    @pytest.mark.parametrize("kind", ["santext", "custext", "rantext"])
    def test_methods_that_count_all_clients_tokens_neither(self, kind, tmp_path):
        given = text_scenario(tmp_path, method=["raw", kind], model={"kind": "causal_lm"})
        with pytest.raises(ScenarioError) as refused:
            refuse_undeployable(given)
        assert [each.field for each in refused.value.problems] == ["method.1.kind"]

    def test_all_at_once(self):
        both = scenario(cohort={"dropout": 0.2}, attacks=[{"kind": "unsplit"}])
        with pytest.raises(ScenarioError) as refused:
            refuse_undeployable(both)
        assert len(refused.value.problems) == 2

    def test_and_nothing_else(self):
        refuse_undeployable(scenario(detectors=[{"kind": "cosine_mad", "response": "rollback"}]))


class TestTerms:
    def test_are_all_but_what_is_a_partys_own(self):
        here = scenario(threads=2, output={"root": "/elsewhere"}, checkpoint={"keep": 5})
        assert digest_terms(here, "rehearsal") == digest_terms(scenario(), "rehearsal")

    @pytest.mark.parametrize(
        "changes",
        [{"seed": 4}, {"schedule": {"rounds": 3}}, {"method": ["wcc"]}, {"topology": "vanilla"}],
        ids=str,
    )
    def test_change_with_all_else(self, changes):
        assert digest_terms(scenario(**changes), "rehearsal") != digest_terms(
            scenario(), "rehearsal"
        )

    def test_change_with_the_mode(self):
        assert digest_terms(scenario(), "private") != digest_terms(scenario(), "rehearsal")

    def test_do_not_say_where_data_lie(self, tmp_path):
        one, other = (text_scenario(tmp_path / place) for place in "ab")
        assert digest_terms(one, "rehearsal") == digest_terms(other, "rehearsal")


def test_a_check_knows_that_the_run_has_no_such_client(tmp_path):
    make_keys(tmp_path, 4, 30)  # as many keys as parties may come, fewer of whom this run has
    with pytest.raises(ScenarioError, match=gist("clients.count ... client 3 ... 0 to 2")):
        list(check_join("127.0.0.1:1", 3, tmp_path, scenario(), "rehearsal"))


def test_machines_that_would_not_give_the_same_are_named():
    ours = describe_machine(torch.device("cpu"))
    assert find_differences(ours, [ours, ours]) == []
    (message,) = find_differences(ours, [ours, {**ours, "threads": 17}])
    assert message.startswith("client 1's threads: 17, not ")
    (message,) = find_differences(ours, [{**ours, "device": "cuda"}])
    assert message == "client 0's device: cuda, not cpu"


class TestOwnData:
    def test_is_all_of_one_clients(self, tmp_path):
        given = text_scenario(tmp_path)
        held = load_own_data(given, given.data.source.path, 1)
        assert [len(part) for part in held.parts] == [0, len(held.train)]

    def test_is_not_divided_among_the_others(self, tmp_path):
        """There may be more of them than this client has samples."""
        made = text_scenario(tmp_path)
        count = len(load_own_data(made, made.data.source.path, 1).train)
        many = made.clients.model_copy(update={"count": 3 * count})
        given = made.model_copy(update={"clients": many})
        held = load_own_data(given, given.data.source.path, 2)
        assert [len(part) for part in held.parts] == [0, 0, count, *[0] * (3 * count - 3)]

    def test_of_a_source_without_a_path(self, tmp_path):
        with pytest.raises(ScenarioError, match=r"data\.source\.kind.*digits"):
            load_own_data(scenario(), tmp_path, 0)

    def test_that_are_not_there(self, tmp_path):
        with pytest.raises(DataError, match="nowhere"):
            load_own_data(text_scenario(tmp_path), tmp_path / "nowhere", 0)


class TestASite:
    def test_of_no_client(self, tmp_path):
        with pytest.raises(ScenarioError, match=r"client 3.*0 to 2"):
            make_site(scenario(), 3, tmp_path, "rehearsal")

    def test_in_a_folder_that_is_taken(self, tmp_path):
        make_site(scenario(), 0, tmp_path, "rehearsal")
        with pytest.raises(RunError, match="--resume"):
            make_site(scenario(), 0, tmp_path, "rehearsal")

    def test_keeps_its_secret_to_its_owner(self, tmp_path):
        secret = load_secret(tmp_path)
        assert load_secret(tmp_path) == secret != secret_in_another(tmp_path)
        assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def secret_in_another(folder):
    (folder / "other").mkdir()
    return load_secret(folder / "other")


class TestKeys:
    def test_a_folder_for_each_party(self, tmp_path):
        made = make_keys(tmp_path / "keys", 2, 30)
        assert [folder.name for folder in made] == ["server", "client-0", "client-1"]
        for folder in made:
            keys = load_keys(tmp_path / "keys", folder.name)
            assert read_owner(keys) == folder.name
            assert check_validity(keys) > datetime.now(UTC) + timedelta(days=29)
            assert keys == load_keys(folder, folder.name), "brought to another machine"
            assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600

    def test_not_over_others(self, tmp_path):
        make_keys(tmp_path, 1, 30)
        with pytest.raises(RunError, match="already holds keys"):
            make_keys(tmp_path, 1, 30)

    def test_that_are_missing(self, tmp_path):
        with pytest.raises(RunError, match="simsplit deploy keys"):
            load_keys(tmp_path, "client-0")

    def test_of_another_authority(self, tmp_path):
        make_keys(tmp_path / "a", 1, 30)
        make_keys(tmp_path / "b", 1, 30)
        one, other = (load_keys(tmp_path / place, "client-0") for place in "ab")
        with pytest.raises(RunError, match=r"issued .*ca\.pem"):
            check_validity(type(one)(other.authority, one.certificate, one.key))

    def test_that_are_not_valid_yet(self, tmp_path):
        make_keys(tmp_path, 1, 30)
        with pytest.raises(RunError, match="valid from"):
            check_validity(load_keys(tmp_path, "client-0"), datetime.now(UTC) - timedelta(days=1))
