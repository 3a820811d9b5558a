"""What this machine has for runs, found by probes of which each has a process of its own."""
