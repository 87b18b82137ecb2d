"""Runs an exported federated plan in plain TensorFlow, or verifies it.

Needs TensorFlow only: neither TensorFlow Federated nor this package.

Example: ./run run_plan --plan=export --verify
"""

from plan_runner.cli import run_app

if __name__ == "__main__":
    run_app()
