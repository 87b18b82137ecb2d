"""Tables, figures and report.html of a run, for people who decide about a model."""
