"""A page is made of escaped markup, tables and charts, and has a subject."""
