"""Numbers of rounds and evaluations: columns, intervals, files."""
