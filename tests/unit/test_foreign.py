"""Files of others: bounded, checked and named in errors; what is no scenario is never shown."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from simsplit.data.arrays import NpzSource
from simsplit.errors import DataError, ScenarioError
from simsplit.foreign import DEEPEST, MOST_NODES, refuse_huge_yaml, strip_controls
from simsplit.scenario import load_scenario, parse

SECRET = "root:$6$salt$secret:19000:0:99999:7:::\n"
LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 9)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2 * DEEPEST))


def get_refusal(path: Path) -> ScenarioError:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    return caught.value


@pytest.mark.parametrize("text", [LAUGHS, MERGED, CHAIN, "[" * 2_000, "a: " + "[" * 2_000])
def test_a_huge_or_deep_text_is_refused_before_it_is_composed(tmp_path, text):
    file = tmp_path / "huge.yaml"
    file.write_text(text)
    assert str(file) in get_refusal(file).reason


def test_values_and_levels_are_counted_with_their_aliases():
    refuse_huge_yaml("a: " + "[" * (DEEPEST - 2) + "]" * (DEEPEST - 2))
    refuse_huge_yaml("a: &a [*a]")  # what is wrong with it is reported elsewhere
    many = "[" + "x, " * (MOST_NODES // 2) + "]"
    refuse_huge_yaml(f"a: {many}")
    with pytest.raises(ValueError, match="values"):
        refuse_huge_yaml(f"a: &a {many}\nb: *a")


def test_aliases_in_a_method_are_a_mistake_by_its_field(tmp_path):
    file = tmp_path / "alias.yaml"
    file.write_text("method: &m [*m]\n")
    assert get_refusal(file).field.startswith("method")


def test_of_thousands_of_mistakes_some_are_explained(tmp_path):
    problems = get_refusal(
        write_file(tmp_path, "".join(f"k{n}: 1\n" for n in range(5000)))
    ).problems
    assert len(problems) == 51
    assert "4,950" in problems[-1].reason


def write_file(tmp_path: Path, text: str, name: str = "scenario.yaml") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


@pytest.mark.parametrize("content", [SECRET, "a: {\n" + SECRET, "- " + SECRET, "'" + SECRET])
@pytest.mark.parametrize("name", ["shadow", "shadow.yaml"])
def test_what_a_scenario_extends_is_not_shown_if_it_is_none(simsplit, tmp_path, content, name):
    """Neither under its own name nor through a link with a scenario's."""
    write_file(tmp_path, content, "shadow")
    if name != "shadow":
        (tmp_path / name).symlink_to(tmp_path / "shadow")
    for text in (f"extends: {name}\n", f"extends: {tmp_path / name}\n"):
        code, out, err = simsplit("validate", write_file(tmp_path, text))
        assert code == 2
        assert name in err
        assert "secret" not in out + err


def test_a_file_that_is_named_itself_is_not_shown_either(simsplit, tmp_path):
    for text in (SECRET, "a: {\n" + SECRET):
        code, out, err = simsplit("validate", write_file(tmp_path, text, "shadow"))
        assert code == 2
        assert "secret" not in out + err


@pytest.mark.parametrize("place", ["/dev/zero", "pipe.yaml", "folder.yaml"])
def test_what_has_no_end_is_not_read(simsplit, tmp_path, place):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    code, _, err = simsplit("validate", write_file(tmp_path, f"extends: {place}\n"))
    assert code == 2
    assert place in err
    assert simsplit("validate", "/dev/zero")[0] == 2


@pytest.mark.parametrize(
    "words",
    [
        *(("run", "quickstart", "--out"), ("sweep", "swept.yaml", "--out")),
        *(("show",), ("compare",), ("report",), ("watch",), ("validate",), ("export",), ("chat",)),
        *(("run",), ("sweep",), ("new", "mine", "--from"), ("attack", "--kind", "unsplit")),
        ("validate", "quickstart", "--plugin"),
    ],
)
def test_a_path_that_cannot_be_is_named(simsplit, tmp_path, words):
    write_file(tmp_path, "extends: quickstart\nsweep: {seed: [0, 1]}\n", "swept.yaml")
    for path in ("x" * 300, write_file(tmp_path, "", "file") / "below"):
        code, _, err = simsplit(*words, path)
        assert code == 2, err
        assert err.startswith("error: ")


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_file_is_no_place_for_a_run(simsplit, tmp_path, command):
    write_file(tmp_path, "extends: quickstart\n", "run.yaml")
    write_file(tmp_path, "extends: quickstart\nsweep: {seed: [0, 1]}\n", "sweep.yaml")
    file = write_file(tmp_path, "precious", "file")
    code, _, err = simsplit(command, f"{command}.yaml", "--out", file)
    assert code == 2
    assert "file" in err
    assert file.read_text() == "precious"


def arrays(path: Path, count: int = 40) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 5)).astype(np.float32)
    np.savez(path, x=x, y=np.arange(count) % 2)
    return path


def load(path: Path) -> None:
    source = NpzSource(path=path)
    _ = source.modality
    source.describe()
    source.load()


def test_cut_and_changed_arrays_are_named(tmp_path):
    whole = arrays(tmp_path / "whole.npz").read_bytes()
    broken = tmp_path / "broken.npz"
    rng = np.random.default_rng(1)
    for place in np.linspace(0, len(whole) - 1, 60).astype(int):
        for content in (whole[:place], whole[:place] + rng.bytes(9) + whole[place + 9 :]):
            broken.write_bytes(content)
            try:
                load(broken)
            except DataError as error:
                assert str(broken) in str(error)  # noqa: PT017 - some bytes are no one's


def test_arrays_that_say_they_are_larger_than_memory_are_refused(tmp_path):
    file = tmp_path / "huge.npz"
    with zipfile.ZipFile(file, "w") as whole:
        for name in ("x", "y"):
            with whole.open(f"{name}.npy", "w") as array:
                np.lib.format.write_array_header_1_0(
                    array, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 1000)}
                )
    with pytest.raises(DataError, match=r"huge\.npz"):
        load(file)


@pytest.mark.parametrize("size", [(60_000, 60_000), (12_000, 12_000)])
def test_an_image_of_too_many_pixels_is_not_decoded(tmp_path, size):
    """Its header says so; there are no pixels behind it."""
    import struct
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0"))
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "0.png").write_bytes(png + chunk(b"IEND", b""))
    source = {"kind": "folder", "path": str(tmp_path / "images")}
    with pytest.raises(DataError, match=r"0\.png"):
        parse({"data": {"source": source}}).data.source.load()


def test_controls_become_marks():
    assert strip_controls("a\tb\nc ü 漢 🙂") == "a\tb\nc ü 漢 🙂"
    assert strip_controls("\x1b]0;t\x07\x9b2J\r\x7f\u202e\udc80") == "?]0;t??2J????"
