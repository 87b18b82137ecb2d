"""A side with AgnosticFedAvg's matrix products alone as its round, in TensorFlow."""

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
    """Returns a function that computes products, of matrices that are drawn here."""
    made = [(product.count, *operands(product)) for product in products]

    def multiply_all() -> None:
        for count, left, right in made:
            for _ in range(count):
                result = tf.linalg.matmul(left, right)
            # The operations of a CPU are synchronous; reading one value makes sure of it.
            _ = result[(0,) * len(result.shape)].numpy()

    return multiply_all


def main() -> None:
    """Runs the rounds that are asked for."""
    side = Side.from_command_line()
    multiply_all = multiplier(round_products(side.workload))
    for _ in side.rounds(side.workload.parameters, packages=["tensorflow"]):
        multiply_all()


if __name__ == "__main__":
    main()
