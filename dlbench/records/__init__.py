"""The run record: what a run writes, and what every table and plot reads."""
