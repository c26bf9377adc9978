"""Results of runs are read from their directories and shown as tables, figures and pages."""
