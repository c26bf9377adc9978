"""A recorded wire is attacked here as a run is: by the same attacks, judged by the same judges."""
