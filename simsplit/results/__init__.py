"""A run directory has a run's tables, checkpoints and facts; `Run` reads it."""

from simsplit.results.directory import CHECKPOINTS as CHECKPOINTS
from simsplit.results.directory import DATA as DATA
from simsplit.results.directory import HOLDINGS as HOLDINGS
from simsplit.results.directory import SCENARIO as SCENARIO
from simsplit.results.directory import SUMMARY as SUMMARY
from simsplit.results.directory import TRACEBACK as TRACEBACK
from simsplit.results.directory import TUNED as TUNED
from simsplit.results.directory import RunWriter as RunWriter
from simsplit.results.read_tables import load_saved_scenario as load_saved_scenario
from simsplit.results.run import Run as Run
from simsplit.results.sweep_directory import SWEEP as SWEEP
from simsplit.results.sweep_directory import CellEntry as CellEntry
from simsplit.results.sweep_directory import RunProgress as RunProgress
from simsplit.results.sweep_directory import SweepDirectory as SweepDirectory
from simsplit.results.sweep_directory import read_progress as read_progress
from simsplit.results.sweep_directory import read_summary as read_summary
