"""This room shows tables, forecasts and files in a terminal."""
