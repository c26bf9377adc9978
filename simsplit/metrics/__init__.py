"""How good what came out is: thin calls into kept libraries."""
