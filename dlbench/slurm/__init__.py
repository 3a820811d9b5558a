"""SLURM: batch scripts, host lists, and the pool that runs the jobs of an experiment."""
