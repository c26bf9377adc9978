"""Pages of the site that are written from the package."""
