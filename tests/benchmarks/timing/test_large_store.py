"""The large store of `scale`, with few clients."""

import collections

from benchmarks.timing import large_store
from tests.importing.harness import table


def test_its_steps_find_what_the_tables_hold(tmp_path):
    path = tmp_path / "clients.sqlite"
    large_store.write_store(path, 200)
    found = dict(large_store.steps(path))
    sizes = collections.Counter()
    for client, _ in table(path, "SELECT client_id, 1 FROM examples WHERE split_name = 'train'"):
        sizes[client] += 1
    assert found["open"] == len(sizes) == 200
    domains = table(
        path,
        "SELECT domain, SUM(num_examples) FROM client_domains WHERE split_name = 'train' "
        "GROUP BY domain ORDER BY domain",
    )
    counts = found["count the examples of each domain"]
    assert counts.tolist() == [n for _, n in domains]
    assert sum(counts) == sizes.total()
    read = found["read 1,000 clients"]
    assert [len(columns["x"]) for columns in read] == [sizes[client] for client in sorted(sizes)]
    for name in ("uniform", "stratified"):
        cohorts = found[f"sample 10 cohorts, {name}"]
        assert all(len(set(cohort)) == 100 and set(cohort) <= set(sizes) for cohort in cohorts)
