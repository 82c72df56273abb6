"""Networks, dynamics ensembles, support models and imagined rollouts."""
