"""A side whose round is the matrix products of AgnosticFedAvg alone, in TensorFlow."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from benchmarks.timing.products import Product, round_products
from benchmarks.timing.side import Side


def operands(product: Product) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns matrices to multiply."""
    generator = tf.random.Generator.from_seed(0)
    batch = [] if product.batch == 1 else [product.batch]
    return (
        generator.normal([*batch, product.m, product.k]),
        generator.normal([*batch, product.k, product.n]),
    )


def multiplier(products: Sequence[Product]) -> Callable[[], None]:
    """Returns a function that computes products of random matrices."""
    made = [(product.count, *operands(product)) for product in products]

    def multiply_all() -> None:
        for count, left, right in made:
            for _ in range(count):
                result = tf.linalg.matmul(left, right)
            # CPU operations are synchronous; on other devices reading a value waits for them.
            _ = result[(0,) * len(result.shape)].numpy()

    return multiply_all


def main() -> None:
    """Runs the requested rounds."""
    side = Side.from_command_line()
    multiply_all = multiplier(round_products(side.workload))
    for _ in side.rounds(side.workload.parameters, packages=["tensorflow"]):
        multiply_all()


if __name__ == "__main__":
    main()
