"""What is printed of an export."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tabulate import tabulate

from tff_agnostic.computations.exchange import MAIN_MODEL
from tff_agnostic.deployment.kinds import EVALUATION
from tff_agnostic.privacy.statement import guarantee
from tff_agnostic.program.deployed.exporting import EVALUATED_MODEL


def summary(manifest: dict[str, Any]) -> str:
    """Returns what a person wants to know of an export."""
    counts = manifest["bytes_per_client_and_round"]
    rows = []
    for direction in ("down", "up"):
        values = counts[direction]
        size = values.get("checkpoint_bytes", values["payload_bytes"])
        rows.append([direction, values["values"], values["payload_bytes"], size])
    rows.insert(0, ["plan", "", "", counts["plan"]["bytes"]])
    if "paper" in counts:
        paper = counts["paper"]
        rows.append(["paper, both", paper["values"], paper["payload_bytes"], ""])
    table = tabulate(rows, headers=["per client and round", "values", "bytes", "bytes as sent"])
    algorithm = manifest["algorithm"]
    what = f"{algorithm} on {manifest['task']}, profile {manifest['profile']}"
    if manifest["kind"] == EVALUATION:
        model = manifest[EVALUATED_MODEL]
        what = f"{EVALUATION} of {'' if model == MAIN_MODEL else f'{model} of '}{what}"
    rounds = f"after {manifest['rounds_trained']} rounds"
    lines = [
        f"{what}, {rounds}; the server sees {manifest['privacy']['server_sees']}",
        *_noise_lines(manifest),
        table,
        *_lacking(manifest["tflite"]["beyond_odp"]),
    ]
    return "\n".join(lines)


def _noise_lines(manifest: dict[str, Any]) -> list[str]:
    noise = manifest["privacy"].get("differential_privacy")
    if noise is None:
        return []
    found = noise["guarantee_as_simulated"]
    epsilon = math.inf if found["epsilon"] is None else found["epsilon"]
    # Of a training rounds; of an evaluation, itself.
    releases = f"{found['rounds']} rounds" if "rounds" in found else "an evaluation"
    return [
        f"noise of z {noise['noise_multiplier']:.4g} in the server's result graph: "
        + guarantee(
            epsilon, found["delta"], f"of each client after {releases} of a fleet as the run's"
        )
        + "; see server_must in the manifest",
        "server_state.ckpt holds the key of the fleet's noise: keep it secret",
    ]


def _lacking(beyond_odp: Mapping[str, str]) -> Iterator[str]:
    for reason in dict.fromkeys(beyond_odp.values()):
        ops = ", ".join(op for op in beyond_odp if beyond_odp[op] == reason)
        yield f"On-Device Personalization's devices lack {ops}: {reason}"
