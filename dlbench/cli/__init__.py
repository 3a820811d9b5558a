"""The command line: one file per group of commands; each parses, calls a room and prints."""
