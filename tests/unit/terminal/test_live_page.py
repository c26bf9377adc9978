"""`simsplit watch --page` and `--serve`: the report of what is still going on."""

import json
import os
import shutil
import socket
import urllib.error
import urllib.request

import pytest
from builders import scenario

from simsplit import load_sweep, run_sweep
from simsplit.errors import RunError
from simsplit.terminal import live_page
from simsplit.terminal.live_page import LivePage, serve_page

RELOADS = '<meta http-equiv="refresh"'
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def ended(finished):
    return finished(scenario())


@pytest.fixture
def going(finished, tmp_path):
    """A run that has done one of its two rounds, as far as its files say."""
    path = finished.copy(scenario(), tmp_path / "run")
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "status": "running"}))
    lines = (path / "rounds.csv").read_text().splitlines(keepends=True)
    (path / "rounds.csv").write_text("".join(lines[:2]))
    return path


def end_a_round(path, ended):
    (path / "rounds.csv").write_text((ended / "rounds.csv").read_text())
    os.utime(path / "rounds.csv", ns=(1, 1))


def test_the_page_is_written_when_a_round_ends_and_reloads_until_the_end(going, ended, tmp_path):
    live = LivePage(going, tmp_path / "live.html")
    live.update()
    first = live.file.read_text()
    assert RELOADS in first
    assert "1 of 2 rounds" in first
    live.file.unlink()
    live.update()
    assert not live.file.exists(), "nothing has ended since"
    end_a_round(going, ended)
    live.update()
    assert "2 of 2 rounds" in live.file.read_text()
    live.update(over=True)
    assert RELOADS not in live.file.read_text()


@pytest.mark.slow
def test_a_run_without_a_round_and_a_sweep_have_a_page_too(going, tmp_path):
    heads = (going / "rounds.csv").read_text().splitlines(keepends=True)[:1]
    (going / "rounds.csv").write_text("".join(heads))
    live = LivePage(going, tmp_path / "live.html")
    live.update()
    assert RELOADS in live.file.read_text()
    (tmp_path / "s.yaml").write_text(scenario(name="two", schedule={"rounds": 1}).yaml())
    swept = run_sweep(load_sweep(tmp_path / "s.yaml", {"sweep": "{seed: [0, 1]}"}), tmp_path / "s")
    shutil.rmtree(swept.path / "seed=1")
    live = LivePage(swept.path, tmp_path / "sweep.html")
    live.update()
    made = live.file.read_text()
    assert [word for word in ("finished", "failed", "waiting") if f">{word}<" in made] == [
        "finished",
        "waiting",
    ]
    shutil.rmtree(swept.path / "seed=0")
    live.update()
    assert "Cells" in live.file.read_text()


def test_tables_in_the_middle_of_a_change_are_read_the_next_time(going, tmp_path):
    page = LivePage(going, tmp_path / "page.html")
    page.update()
    before, wire = page.file.read_bytes(), (going / "wire.csv").read_bytes()
    (going / "wire.csv").write_bytes(b"round")
    os.utime(going / "rounds.csv", (1, 1))
    page.update()
    assert page.file.read_bytes() == before
    with pytest.raises(RunError):
        page.update(over=True)
    (going / "wire.csv").write_bytes(wire)
    page.file.unlink()
    page.update()
    assert page.file.exists()


def fetch(address, host=None):
    request = urllib.request.Request(address, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_the_page_is_served_to_this_machine_alone(tmp_path):
    (tmp_path / "live.html").write_text("a page")
    (tmp_path / "secret").write_text("secret")
    with serve_page(tmp_path / "live.html", 0) as address:
        assert fetch(address) == (200, "a page")
        assert fetch(f"{address}secret")[0] == fetch(f"{address}../secret")[0] == 404
        # A name that a foreign page has had resolved to this address.
        assert fetch(address, "example.org:80")[0] == fetch(address, "example.org")[0] == 403
        assert fetch(address, "localhost")[0] == 200, "as a browser asks on port 80"
        port = int(address.rsplit(":", 1)[1].strip("/"))
        with pytest.raises(RunError), serve_page(tmp_path / "live.html", port):
            pass
    with socket.socket() as stream:
        assert stream.connect_ex(("127.0.0.1", port)), "nobody listens any more"


def test_the_command_leaves_a_page_of_the_end(simsplit, ended, tmp_path):
    code, _, err = simsplit("watch", ended, "--page", "live.html", "--serve", "0")
    assert code == 0
    assert "http://127.0.0.1:" in err
    assert RELOADS not in (tmp_path / "live.html").read_text()
    assert simsplit("watch", ended, "--page", "live.txt")[0] == 2
    assert simsplit("watch", tmp_path / "none", "--page", "live.html")[0] == 2


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
def test_a_browser_shows_the_next_round_by_itself(going, ended, tmp_path, monkeypatch):
    sync_api = pytest.importorskip("playwright.sync_api")
    monkeypatch.setattr(live_page, "RELOAD_S", 1)
    live = LivePage(going, tmp_path / "live.html")
    live.update()
    with serve_page(live.file, 0) as address, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page()
        wrong = []
        page.on("console", lambda message: wrong.append(message.text))
        page.goto(address)
        assert page.get_by_text("1 of 2 rounds").count()
        end_a_round(going, ended)
        live.update()
        page.get_by_text("2 of 2 rounds").wait_for(timeout=20_000)
        browser.close()
    assert [text for text in wrong if "favicon" not in text and "404" not in text] == []
