"""Benchmark process that only computes the matrix products of AgnosticFedAvg, in TensorFlow."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from benchmarks.timing.products import Product, round_products
from benchmarks.timing.side import Side


def operands(product: Product) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns random matrices for a product."""
    generator = tf.random.Generator.from_seed(0)
    batch = [] if product.batch == 1 else [product.batch]
    return (
        generator.normal([*batch, product.m, product.k]),
        generator.normal([*batch, product.k, product.n]),
    )


def multiplier(products: Sequence[Product]) -> Callable[[], None]:
    """Returns a function that computes all products with random matrices."""
    made = [(product.count, *operands(product)) for product in products]

    def multiply_all() -> None:
        for count, left, right in made:
            for _ in range(count):
                result = tf.linalg.matmul(left, right)
            # Read a value, to wait for the operations of an accelerator.
            _ = result[(0,) * len(result.shape)].numpy()

    return multiply_all


def main() -> None:
    """Runs the rounds that the benchmark requests."""
    side = Side.from_command_line()
    multiply_all = multiplier(round_products(side.workload))
    for _ in side.rounds(side.workload.parameters, packages=["tensorflow"]):
        multiply_all()


if __name__ == "__main__":
    main()
