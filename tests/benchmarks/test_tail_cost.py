"""What Delta-FL's rounds cost beside those of FedAvg: the sides that are compared."""

from benchmarks.tail_cost import main
from tests.data.stores import image, write_store
from tests.selection import exhaustive


@exhaustive
def test_every_threshold_and_a_family_are_compared(tmp_path, capsys):
    records = [
        (split, image(f"{split}{k}", ("high_school", "census")[k % 2], k % 10))
        for split in ("train", "test")
        for k in range(6)
    ]
    store = write_store(tmp_path / "s.sqlite", records, "features")
    main([str(store), "--models", "linear", "--rounds=1", "--clients=2"])
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[-4:]]
    assert [row[0].strip() for row in rows] == [
        "linear: survey / FedAvg",
        "linear: lagged / FedAvg",
        "linear: tracked / FedAvg",
        "linear: family / 4 single runs",
    ]
