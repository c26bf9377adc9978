"""One HTML page of a run, or of several beside each other: `document` has all of it."""
