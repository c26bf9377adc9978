"""What a release is: its version, what the wheel carries, its files, and jobs on clusters."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import release
import yaml
from typer.main import get_command

from simsplit.__main__ import app
from simsplit.scenario import load_sweep

ROOT = Path(__file__).parents[2]
SIZES = {part: 10 for part in release.PARTS if part}
FILES = {
    "simsplit/pretrain/models": "simsplit/pretrain/models/ci-0/model.safetensors",
    "simsplit/measured": "simsplit/measured/lightsplit/table3.csv",
    "simsplit/shipped": "simsplit/shipped/quickstart.yaml",
    "simsplit/examples": "simsplit/examples/sign.py",
    "simsplit": "simsplit/__init__.py",
}


def list_wheel() -> list[tuple[str, int]]:
    """Return the files that a wheel of this tree would have, unpacked sizes with them."""
    builders = pytest.importorskip("hatchling.builders.wheel")
    builder = builders.WheelBuilder(str(ROOT))
    files = list(builder.recurse_included_files())
    return [(each.distribution_path, Path(each.path).stat().st_size) for each in files]


def test_the_wheel_has_what_its_parts_may_have_and_no_more():
    wheel = [(name, 1) for name, _ in list_wheel()]
    assert release.list_faults(wheel) == []
    assert len(wheel) > 600


@pytest.mark.parametrize(
    ("name", "nbytes", "fault"),
    [
        ("simsplit/secrets.pem", 1, "secrets.pem"),
        ("simsplit/shipped/data.npz", 1, "data.npz"),
        ("tests/test_it.py", 1, "tests/test_it.py"),
        ("simsplit/measured/large.csv", 40_000_000, "MB, more than"),
    ],
)
def test_what_a_wheel_should_not_have_is_named(name, nbytes, fault):
    good = [(file, 10) for file in FILES.values()] + [("simsplit-0.1.0.dist-info/METADATA", 9)]
    assert release.list_faults(good) == []
    (named,) = release.list_faults([*good, (name, nbytes)])
    assert fault in named
    without = [(file, 10) for part, file in FILES.items() if part != "simsplit/measured"]
    assert release.list_faults(without) == ["simsplit/measured: nothing is there"]


def test_a_cut_dates_the_changelog_and_the_citation():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    (version,) = re.findall(r"^## (\S+) \(unreleased\)$", changelog, re.M)
    cut = release.cut_changelog(changelog, version, "2030-01-02")
    assert f"## {version} (2030-01-02)" in cut
    with pytest.raises(SystemExit, match="unreleased"):
        release.cut_changelog(cut, version, "2030-01-02")
    citation = release.cut_citation((ROOT / "CITATION.cff").read_text(), version, "2030-01-02")
    facts = yaml.safe_load(release.cut_citation(citation, version, "2030-01-03"))
    assert (facts["version"], str(facts["date-released"])) == (version, "2030-01-03")
    assert facts["authors"]


def test_a_wrong_version_is_refused(capsys):
    with pytest.raises(SystemExit):
        release.main(["0.1", "--dry-run"])
    assert "MAJOR.MINOR.PATCH" in capsys.readouterr().err


def test_the_version_is_the_tags_and_stands_nowhere_else():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["source"] == "vcs"
    assert {"hatchling", "hatch-vcs"} == set(project["build-system"]["requires"])
    assert "version=" not in (ROOT / "simsplit/__init__.py").read_text()


@pytest.mark.slow
def test_a_release_is_rehearsed_from_a_tag_in_a_clone():
    """All of it: cut, tag, sdist, wheel from the sdist, twine, contents, and commands."""
    for package in ("build", "twine", "hatch_vcs"):
        pytest.importorskip(package)
    before = subprocess.check_output(["git", "tag"], cwd=ROOT)
    release.main(["0.1.0", "--dry-run", "--no-isolation"])
    assert subprocess.check_output(["git", "tag"], cwd=ROOT) == before


@pytest.mark.parametrize("name", ["build", "docs", "release", "tests"])
def test_workflows_check_out_run_and_end(name):
    flow = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
    assert flow[True]  # "on", which YAML 1.1 reads as a truth value
    assert flow["permissions"]
    for job in flow["jobs"].values():
        assert job["timeout-minutes"] <= 90
        needs = job.get("needs")
        assert needs is None or needs in flow["jobs"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            for script in re.findall(r"(?:tools|\.ci)/[\w.]+", step.get("run", "")):
                assert (ROOT / script).is_file()


def parse(words):
    """Parse a command of simsplit, without running it; return its name and options."""
    program = get_command(app)
    command = program.commands[words[0]]
    return words[0], command.make_context(words[0], list(words[1:])).params


def test_the_slurm_script_is_bash_and_its_commands_are_ours():
    file = ROOT / "examples/cluster/sweep.slurm"
    subprocess.run(["bash", "-n", str(file)], check=True)
    text = file.read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)$", text, re.M))
    assert {"cpus-per-task", "mem", "time", "signal", "requeue"} <= options.keys()
    lines = re.findall(r"^simsplit (.*?)(?: &.*)?$", text, re.M)
    values = {"$sweep": "digits-table", "$out": "runs/digits-table", "$jobs": "16"}
    parsed = [parse([values.get(word, word) for word in shlex.split(line)]) for line in lines]
    assert [name for name, _ in parsed] == ["sweep", "compare"]
    assert parsed[0][1]["resume"]
    assert load_sweep(parsed[0][1]["file"]).cells


def test_the_kubernetes_job_keeps_what_it_finished():
    claim, job = yaml.safe_load_all((ROOT / "examples/cluster/sweep.kubernetes.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] in {"OnFailure", "Never"}
    (container,) = pod["containers"]
    assert "command" not in container  # the image's entry point is simsplit
    name, options = parse(container["args"])
    assert (name, options["resume"]) == ("sweep", True)
    assert load_sweep(options["file"]).cells
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    assert Path(options["out"]).is_relative_to(mount["mountPath"])
    assert volume["name"] == mount["name"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert int(container["resources"]["requests"]["cpu"]) == options["jobs"]
