"""Clients are valued by the score of coalitions, which train without the others."""
