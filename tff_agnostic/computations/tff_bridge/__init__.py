"""What TensorFlow Federated has of its own - models, aggregators, clients - in this package.

Nothing imports these modules before they are needed: `models.from_tff`, `models.to_tff`,
`aggregations.from_tff` and `data.tff_clients` load them when they are called.
"""
