"""Tables, figures and report.html of a run, for readers who decide about a model."""
