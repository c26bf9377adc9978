"""What a page is made of: escaped markup, tables, charts, and what it is about."""
