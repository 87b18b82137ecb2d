"""What columns of a table become: inputs, labels, categories, images, words."""
