"""What private rounds cost beside rounds without noise: the sides that are compared."""

import pytest

from benchmarks.private_cost import main


@pytest.mark.nightly
def test_every_kind_of_noise_is_beside_the_sums_that_it_is_added_to(capsys):
    main(["--features=3", "--classes=2", "--clients=4", "--rounds=1"])
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[-6:]]
    assert [(row[0].strip(), row[2].strip()) for row in rows] == [
        ("plain", "plain"),
        ("secure", "secure"),
        ("central", "plain"),
        ("distributed, philox", "secure"),
        ("distributed, secure", "secure"),
        ("tree", "plain"),
    ]
