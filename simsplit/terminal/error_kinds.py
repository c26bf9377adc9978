"""Each kind of error has a name, a cause and a cure: for `simsplit explain`, and for a page.

An error is of the first kind of its class whose pattern its message has; the last kind of a class
has none, and takes the others.
"""

import re
from dataclasses import dataclass

from simsplit.errors import (
    DataError,
    PluginError,
    PluginFailedError,
    ProtocolError,
    RunError,
    RunFailedError,
    ScenarioError,
    SimsplitError,
)


@dataclass(frozen=True)
class ErrorKind:
    """A kind of error."""

    name: str
    of: type[Exception]
    about: str
    cause: str
    cure: str
    pattern: str = ""
    """What the message of such an error has; empty: anything."""


KINDS = (
    ErrorKind(
        "E-SCENARIO-01",
        ScenarioError,
        "A name that nothing has",
        "A field, a kind or a choice is misspelt, stands in the wrong part, or is of a plugin "
        "that was not named.",
        "Take one of the names that the message allows. `simsplit list PART KIND` prints a "
        "part's fields, `simsplit schema` all of them. A part of your own needs `--plugin "
        "FILE`.",
        r"unknown|belongs to kind|kind: missing",
    ),
    ErrorKind(
        "E-SCENARIO-02",
        ScenarioError,
        "A package is missing",
        "The field needs an optional package that is not installed.",
        "Install it with the command in the message, or leave the field out. `simsplit doctor` "
        "lists what is missing for which feature.",
        r"pip install",
    ),
    ErrorKind(
        "E-SCENARIO-03",
        ScenarioError,
        "Too large for this machine",
        "The estimate of memory or disk is above what is free.",
        "Use fewer clients, `clients.heads: shared`, a smaller `train.batch_size` or "
        "`engine.rest: disk`. `simsplit plan FILE` prints the estimate.",
        r"needs about|are free there|too large",
    ),
    ErrorKind(
        "E-SCENARIO-04",
        ScenarioError,
        "A value that is not allowed",
        "The value has another type than the field, or lies outside its bounds.",
        "Take a value that the message allows. In YAML `1e-3` is a text: write `1.0e-3`.",
        r"must be|must have|got '|; allowed: ",
    ),
    ErrorKind(
        "E-SCENARIO-06",
        ScenarioError,
        "No scenario's file",
        "There is no file, and no shipped scenario, of that name, or the file is no YAML in UTF-8.",
        "Give the path of a file from the working folder, or a name that `simsplit list scenarios` "
        "prints; mend the line that the message names.",
        r"cannot read|not valid YAML|not UTF-8",
    ),
    ErrorKind(
        "E-SCENARIO-05",
        ScenarioError,
        "Fields that do not fit together",
        "Each field is right by itself, and a rule of whole scenarios refuses them together: a "
        "part could not take effect.",
        "Change one of the fields in the message. `simsplit list rules` prints all rules, "
        "`simsplit list compatibility` what goes together.",
    ),
    ErrorKind(
        "E-DATA-01",
        DataError,
        "No such file of data",
        "Nothing lies at the path of `data.source`, or its files have other names than expected.",
        "Paths count from the working folder. Give the path of the file or folder: `--set "
        "data.source.path=...`.",
        r"no file|no such|not found|there is nothing|no .*\.parquet",
    ),
    ErrorKind(
        "E-DATA-02",
        DataError,
        "A file that cannot be read",
        "The file is damaged, is no table, has other separators, or is not in UTF-8.",
        "Convert it (`iconv -f latin1 -t utf-8`), set `data.source.separator`, or fetch it again.",
        r"cannot be read|UTF-8|separator|is not a table",
    ),
    ErrorKind(
        "E-DATA-03",
        DataError,
        "A column that does not fit",
        "A column is missing, has too many different values, holds dates or infinite numbers, "
        "or is no target.",
        "Name the target (`data.source.target`), leave columns out (`data.source.drop`), or say "
        "which hold categories.",
        r"column",
    ),
    ErrorKind(
        "E-DATA-04",
        DataError,
        "Data that cannot be downloaded",
        "The hub or the server of a data set does not answer, or has no such name.",
        "Check name and network, or download the files yourself and read them with `kind: "
        "parquet`, `image_folder` or `table`.",
        r"cannot be loaded|download|network",
    ),
    ErrorKind(
        "E-DATA-05",
        DataError,
        "Data that cannot be divided or used so",
        "There are too few samples for the clients, or the samples have another form than the "
        "model or partition needs.",
        "Use fewer clients, another `data.partition`, or the form that the message names.",
    ),
    ErrorKind(
        "E-RUN-01",
        RunError,
        "No run there",
        "The folder does not exist, or has no `scenario.yaml`.",
        "Name a run's folder, as `simsplit run` prints it at its end. A sweep's runs lie in "
        "folders of their own inside it.",
        r"no such folder|no run|is no folder|no sweep",
    ),
    ErrorKind(
        "E-RUN-02",
        RunError,
        "The folder is taken",
        "The folder holds another run, or another process writes it.",
        "Give another `--out`, or `--resume` to go on with what is there. A process's lock goes "
        "with the process.",
        r"already holds|is written by|writes it|locked",
    ),
    ErrorKind(
        "E-RUN-03",
        RunError,
        "Another scenario than before",
        "A run is resumed with fields that change its results.",
        "Leave the fields as they were, or give another `--out`. A run's length, `stop`, "
        "`checkpoint`, `threads`, `device` and `engine` may change.",
        r"another scenario|pass (it|them) again|shorter run|was not trained",
    ),
    ErrorKind(
        "E-RUN-04",
        RunError,
        "A run's files cannot be used",
        "A file of the run is missing, damaged, or of another version.",
        "Take the run's own files again from where they were copied, or run the "
        "scenario of its folder anew.",
        r"damaged|cannot be read|lacks|has no\b|misses|older",
    ),
    ErrorKind(
        "E-RUN-05",
        RunError,
        "Not possible as things are",
        "The command needs something first, which the message names, such as a checkpoint, a "
        "process that has ended or a committed change.",
        "Do what the message says, and give the same command again.",
    ),
    ErrorKind(
        "E-FAILED-01",
        RunFailedError,
        "Training diverges",
        "A loss is no longer finite.",
        "Use smaller `train.client.lr` and `train.server.lr`, or `train.clip_norm`. What came "
        "before is kept.",
        r"finite",
    ),
    ErrorKind(
        "E-FAILED-02",
        RunFailedError,
        "The run could not go on",
        "A disk is full, a host or client is lost, or cells of a sweep failed.",
        "Remove the cause in the message, and give the same command with `--resume`.",
    ),
    ErrorKind(
        "E-PLUGIN-01",
        PluginError,
        "A plugin's part fails",
        "A hook of your part raised an exception, or returned what the message says in place of "
        "what is expected.",
        "Mend the line in the message. `simsplit validate FILE --plugin FILE` rehearses the "
        "part in a second.",
    ),
    ErrorKind(
        "E-PLUGIN-02",
        PluginFailedError,
        "A plugin's part failed in training",
        "A hook failed in a round, after rehearsal had passed.",
        "Mend the plugin, and go on with `--resume`; `traceback.txt` in the run's folder has "
        "the whole traceback.",
    ),
    ErrorKind(
        "E-PROTOCOL-01",
        ProtocolError,
        "The two sides disagree",
        "What one side sent is not what the other expects: a defect in simsplit or in a plugin.",
        "Without a plugin, please report it, with the output of `simsplit doctor`.",
    ),
    ErrorKind(
        "E-COMMAND-01",
        SimsplitError,
        "A command's words do not fit",
        "An option has a value that it does not take, or lacks another option.",
        "The command with `--help` lists what it takes.",
    ),
    ErrorKind(
        "E-FILE-01",
        OSError,
        "The system refuses a file",
        "A path is too long, lies below a file, or may not be read or written.",
        "Choose another path, or change its permissions.",
    ),
)


def find_kind(error: Exception) -> ErrorKind:
    """Return the kind of an error: the first one of its nearest class that its message fits."""
    for cls in type(error).__mro__:
        for kind in KINDS:
            if kind.of is cls and re.search(kind.pattern, str(error)):
                return kind
    raise TypeError(f"{type(error).__name__} has no kind")


def format_kind(kind: ErrorKind) -> str:
    """Format a kind for a terminal."""
    return f"{kind.name}  {kind.about}\n\ncause: {kind.cause}\ncure:  {kind.cure}"
