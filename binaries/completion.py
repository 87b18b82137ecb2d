"""Prints the code that completes commands, flags and their values in bash or zsh.

Example: source <(./run completion bash)
"""

from tff_agnostic.run.completion import run_app

if __name__ == "__main__":
    run_app()
