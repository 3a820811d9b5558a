"""Runtime: runs a communication program on live communicators and records it."""
