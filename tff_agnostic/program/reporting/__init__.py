"""What people see of rounds and evaluations: numbers in files, tables, plots, a progress line."""
