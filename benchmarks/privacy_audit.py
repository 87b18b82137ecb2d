"""Attacks rounds of every private mode, and prints what that proves of the epsilon of each.

    .venv/bin/python -m benchmarks.privacy_audit

Whole rounds with a worst-case client and without it, in thousands of runs. A mode fails if an
attacker proves a larger epsilon than is claimed. Controls claim too small an epsilon on purpose:
they fail if no attacker proves that.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any, Optional

from tabulate import tabulate

from tff_agnostic.aggregations.private_sum import AdaptiveClipping
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.distributed import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.mechanisms import CentralNoise, Mechanism, TreeNoise
from tff_agnostic.privacy.sampling import (
    CohortSampling,
    CountedCohorts,
    FixedSizeCohorts,
    PoissonCohorts,
    SecretCohorts,
    StratifiedCohorts,
)
from tff_agnostic.privacy.tree import Participations
from tff_agnostic.program.studies.attacked_rounds import Role
from tff_agnostic.program.studies.privacy_audit import Audit, Audited, audit
from tff_agnostic.runtimes.tff_exit import drop_tff_context_at_exit

_STEPS, _VALUES = 2.0**14, 16
_ALL, _THIRD, _SIXTH = PoissonCohorts(6, 6), PoissonCohorts(6, 2), PoissonCohorts(6, 1)


@dataclasses.dataclass(frozen=True)
class Mode:
    """What is played, and what is claimed of it.

    Attributes:
        mechanism: What a round releases.
        rounds: Rounds of a run.
        algorithm: Whose rounds.
        settings: Of the private sums and of the audit.
        delta: The delta that epsilon is for.
        account: For a control, a mechanism that the rounds have not, whose epsilon is claimed.
    """

    mechanism: Audited
    rounds: int
    algorithm: str = "agnostic_fed_avg"
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    delta: float = 0.02
    account: Optional[Mechanism] = None

    @property
    def is_control(self) -> bool:
        """Whether its claim is wrong on purpose."""
        return self.account is not None

    def audited(self, runs: int, seed: int = 0) -> Audit:
        """Returns what attackers prove in so many runs, whose keys are drawn with a seed."""
        claimed = PrivacyAccountant([self.account or self.mechanism], self.delta)
        return audit(
            self.mechanism,
            self.rounds,
            self.delta,
            runs,
            seed,
            claimed=claimed.epsilon(self.rounds),
            algorithm=self.algorithm,
            **self.settings,
        )


def _of_clients(z: float, sampling: Any, noise_clients: int, least: int) -> DistributedNoise:
    groups = (IntegerGroup(z, _STEPS, _VALUES),)
    return DistributedNoise(groups, "skellam", sampling, noise_clients, least)


def _central(z: float, sampling: CohortSampling = _ALL) -> CentralNoise:
    return CentralNoise(z, sampling)


# A round has 2 of 20 clients on average, and everybody knows how many.
_COUNTED = _of_clients(0.8, CountedCohorts(20, 2, 1), 2, 1)

MODES = {
    "central, all clients, FedAvg": Mode(_central(1), 2, "fed_avg"),
    "central, all clients": Mode(_central(1), 2),
    "central, adaptive clipping": Mode(_central(1), 2, settings={"clipping": AdaptiveClipping()}),
    "central, joint clipping": Mode(_central(1), 2, settings={"joint_clipping": True}),
    "central, secure sums": Mode(_central(1), 2, settings={"secure": True}),
    "central, Delta-FL (two exchanges)": Mode(_central(1), 2, "delta_fl"),
    "central, Poisson, 2 of 6": Mode(_central(0.8, _THIRD), 3),
    "central, Poisson, 1 of 6, FedAvg": Mode(_central(0.5, _SIXTH), 4, "fed_avg"),
    "central, 3 of 6": Mode(_central(2, FixedSizeCohorts(6, 3)), 2),
    "central, 3 of 4 and 2 in strata": Mode(_central(2, StratifiedCohorts((4, 2), 3)), 2),
    "tree, 8 rounds, a client in two": Mode(TreeNoise(2, Participations(2, 4)), 8),
    "tree, adaptive, new every 3 rounds": Mode(
        TreeNoise(2, Participations(min_separation=2, restart_every=3)),
        6,
        "fed_avg",
        {"clipping": AdaptiveClipping()},
    ),
    "distributed, all clients, FedAvg": Mode(
        _of_clients(1.2, SecretCohorts(6, 6, 6), 6, 6), 2, "fed_avg"
    ),
    "distributed, all clients": Mode(_of_clients(1.2, SecretCohorts(6, 6, 6), 6, 6), 2),
    "distributed, 2 of 6, a secret": Mode(_of_clients(0.8, SecretCohorts(6, 6, 2), 6, 6), 3),
    "distributed, 2 of 6, ChaCha20": Mode(
        _of_clients(0.8, SecretCohorts(6, 6, 2), 6, 6), 3, settings={"noise_generator": "secure"}
    ),
    "distributed, 1 of 6 in turns of 12": Mode(
        _of_clients(0.8, SecretCohorts(12, 6, 1), 6, 6),
        6,
        settings={"clipping": AdaptiveClipping()},
    ),
    "distributed, 3 of 6": Mode(_of_clients(2, FixedSizeCohorts(6, 3), 3, 3), 2),
    "distributed, 2 of 20, counted": Mode(_COUNTED, 4),
    "control: half the noise that is claimed": Mode(_central(0.5), 2, account=_central(1)),
    "control: half the noise, tree": Mode(
        TreeNoise(1, Participations(1)), 4, account=TreeNoise(2, Participations(1))
    ),
    "control: half the noise, distributed": Mode(
        _of_clients(0.6, SecretCohorts(6, 6, 6), 6, 6),
        2,
        account=_of_clients(1.2, SecretCohorts(6, 6, 6), 6, 6),
    ),
    "control: counted, claimed as a secret": Mode(
        _COUNTED,
        8,
        settings={"without": Role.SILENT},
        delta=0.04,
        account=CentralNoise(0.8, PoissonCohorts(20, 2)),
    ),
}


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Prints a line for each mode; ends with an error if one is not as it must be."""
    parser = argparse.ArgumentParser(prog="privacy_audit", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="with the client, and without it")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    settings = parser.parse_args(argv)
    drop_tff_context_at_exit()
    rows, failed = [], []
    for seed, (name, mode) in enumerate(MODES.items()):
        if name not in settings.modes:
            continue
        start = time.process_time()
        found = mode.audited(settings.runs, seed)
        is_right = found.is_refuted is mode.is_control
        if not is_right:
            failed.append(name)
        verdict = ("found" if found.is_refuted else "not refuted") + ("" if is_right else ": WRONG")
        of_noisy, of_published, shift, shows_participation, _ = found.findings
        numbers = (found.claimed, of_noisy.epsilon, of_published.epsilon, shift)
        shows = "yes" if shows_participation else "no"
        seconds = f"{time.process_time() - start:.0f}"
        rows.append([name, *(f"{number:.3f}" for number in numbers), shows, verdict, seconds])
        print(f"{name}: {verdict}", file=sys.stderr)
    columns = [
        "rounds",
        "claimed",
        "from noisy sums",
        "from what is published",
        "shift",
        "shows who takes part",
        "claim",
        "processor seconds",
    ]
    print(tabulate(rows, columns, "github", disable_numparse=True))
    if failed:
        sys.exit(f"error: expected claims that hold, and controls that are found: {failed}")


if __name__ == "__main__":
    main()
