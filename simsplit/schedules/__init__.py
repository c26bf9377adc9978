"""Who goes next, what a round is, and the choreography of a step."""
