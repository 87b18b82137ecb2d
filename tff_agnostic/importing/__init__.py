"""Import of public formats into a client store: readers, splits, vocabulary, report."""
