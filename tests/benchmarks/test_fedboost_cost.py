"""What a client is sent at a fixed budget does not depend on the number of predictors."""

from benchmarks.fedboost_cost.measure import main


def test_bytes_are_those_of_the_budget(capsys):
    size = ["--outcomes=7", "--budget=2", "--clients=3", "--words=4", "--rounds=1"]
    main(["--predictors", "9", *size])
    q, _, _, sent, of_all, _ = capsys.readouterr().out.splitlines()[-1].split()
    assert q == "9"
    # Two of 7 probabilities and four numbers, and the scale of a domain
    assert sent == str(4 * (2 * (7 + 4) + 1))
    assert of_all == str(4 * 9 * (7 + 1))
