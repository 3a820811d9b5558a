"""Analysis: from run records to metrics with confidence intervals, tables, plots and a report."""
