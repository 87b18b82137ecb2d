"""Tables, figures and report.html of a run, for whoever has to answer for a model."""
