"""The algorithms; each file is one paper and nothing else."""
