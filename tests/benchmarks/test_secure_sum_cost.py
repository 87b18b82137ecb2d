"""What a secure sum costs beside a plain one: the table, and that both sums are compared."""

import numpy as np
import pytest

from benchmarks import secure_sum_cost

_GIVEN = ["--clients", "5", "--values", "10", "--vanish", "0.2"]


@pytest.mark.slow
def test_both_sums_are_in_the_table(capsys):
    secure_sum_cost.main(_GIVEN)
    *_, plain, secure = capsys.readouterr().out.splitlines()
    plain, secure = ([cell.strip() for cell in row.split("|")[1:-1]] for row in (plain, secure))
    assert plain[:3] == ["5", "10", "plain"] and secure[:3] == ["5", "10", "secure"]
    # Ten numbers of 32 bits, and 3 more for five clients: 350 bits.
    assert plain[5:] == ["0", "44"]
    assert int(secure[5].replace(",", "")) > int(secure[6].replace(",", "")) > 44 + 5 * 64


def test_another_sum_is_found_out(monkeypatch):
    cost = secure_sum_cost.Cost()
    monkeypatch.setattr(secure_sum_cost, "plain", lambda *given: (cost, np.zeros(10, np.uint64)))
    with pytest.raises(SystemExit, match="5 clients, 10 values: the sums differ"):
        secure_sum_cost.main(_GIVEN)
