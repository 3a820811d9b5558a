"""What the preflight finds out about the machine, and what it makes of it: pure where it judges, MPI where it asks."""
