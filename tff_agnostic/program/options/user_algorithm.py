"""Users' algorithms: Python files that define `ALGORITHM`, an `AlgorithmSpec`.

Results of a file's functions are checked, and errors show the user's lines. A round is traced when
the algorithm is built, so that mistakes appear before training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from tff_agnostic import computations as core
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Options
from tff_agnostic.base.user_code import UserFile
from tff_agnostic.computations.clients import client_arrays
from tff_agnostic.computations.round import check_bounds, check_state, client_result
from tff_agnostic.program.options.flags import build as build_options
from tff_agnostic.program.options.flags import option_flags

_SUFFIX = ".py"
_DEFINITION = "ALGORITHM"
# Keys of a run's fingerprint with the digests of the user's file, and of the modules that the file
# imports from its folder.
OWN_CODE = ("algorithm", "files that the algorithm imports")
_KINDS = (bool, int, float, str, Path)
_ITEMS = (int, float, str, Path)
_KEPT_FILES = 16


def is_user_file(name: str) -> bool:
    """Returns whether the name of an algorithm is a Python file."""
    return name.endswith(_SUFFIX)


def algorithm_named(name: str) -> core.AlgorithmSpec:
    """Returns a registered algorithm by name, or a user's algorithm by path."""
    return load_user_algorithm(Path(name)) if is_user_file(name) else ALGORITHMS[name]


def algorithm_label(name: str) -> str:
    """Returns the short name of an algorithm, for folders and messages: a file's stem."""
    return Path(name).stem if is_user_file(name) else name


def load_user_algorithm(path: Path) -> core.AlgorithmSpec:
    """Returns the algorithm that a Python file defines.

    An unchanged file is executed only once, so that its options class stays the same.
    """
    return _load_current(path).spec


def algorithm_fingerprint(name: str) -> dict[str, str]:
    """Returns digests of the code of a user's algorithm; empty for a registered algorithm.

    Call it after building the algorithm, as building may import further files.
    """
    if not is_user_file(name):
        return {}
    loaded = _load_current(Path(name))
    # Keep the first digests: later ones may include files that the running algorithm imports.
    digests = loaded.digests or loaded.file.digests()
    return {
        ours: digests[key] for ours, key in zip(OWN_CODE, ("file", "imports")) if key in digests
    }


@contextlib.contextmanager
def building_options(name: str) -> Iterator[None]:
    """Context for building an algorithm's options, in which errors show the user's lines."""
    if not is_user_file(name):
        yield
        return
    mistake = None
    with _load_current(Path(name)).file.running("options"):
        try:
            yield
        except UserError as e:
            mistake = e
    if mistake is not None:
        raise mistake


def _load_current(path: Path) -> _Loaded:
    try:
        stat = path.stat()
    except OSError:
        # If the file cannot be read, `_loaded` raises the error about it.
        return _loaded(path, 0, 0)
    return _loaded(path.absolute(), stat.st_mtime_ns, stat.st_size)


@dataclasses.dataclass
class _Loaded:
    file: UserFile
    spec: core.AlgorithmSpec
    digests: dict[str, str] = dataclasses.field(default_factory=dict)


@functools.lru_cache(maxsize=_KEPT_FILES)
def _loaded(path: Path, mtime_ns: int, size: int) -> _Loaded:
    del mtime_ns, size
    file = UserFile(path)
    spec: core.AlgorithmSpec = file.value(
        _DEFINITION, "an AlgorithmSpec", lambda value: isinstance(value, core.AlgorithmSpec)
    )
    with file.running("options"):
        _check_options(spec.options)
        if not isinstance(spec.label, str):
            raise UserError(f"label: expected a string, found {_shown(spec.label)}")
        _check_paper_settings(spec)

    def build(problem: core.Problem, options: Any, **arguments: Any) -> core.Algorithm:
        with file.running("build"):
            algorithm = checked_algorithm(spec.build(problem, options, **arguments), problem, file)
        trace_round(algorithm)
        loaded.digests = loaded.digests or file.digests()
        return algorithm

    loaded = _Loaded(file, dataclasses.replace(spec, build=build))
    return loaded


def _check_options(options: Any) -> None:
    if not (isinstance(options, type) and issubclass(options, Options)):
        raise UserError(f"options: expected a subclass of Options, found {_shown(options)}")
    # Unlike `dataclasses.fields`, this includes the class's constants.
    declared = set(options.__dataclass_fields__)
    undeclared = sorted(set(vars(options).get("__annotations__", {})) - declared)
    if undeclared:
        raise UserError(
            f"options: expected a frozen dataclass, found a plain class with {undeclared[0]}"
        )
    for flag in option_flags(options):
        is_list = flag.kind is tuple and flag.item in _ITEMS
        if not is_list and flag.kind not in _KINDS:
            raise UserError(
                f"options: expected {flag.path[-1]} to be bool, int, float, str, Path or "
                f"tuple[float, ...], optional or not, found {_shown(flag.kind)}"
            )
    options()


def _check_paper_settings(spec: core.AlgorithmSpec) -> None:
    if not isinstance(spec.paper_settings, Mapping):
        raise UserError(
            f"paper_settings: expected values by flag, found {_shown(spec.paper_settings)}"
        )
    by_name = {flag.name: flag for flag in option_flags(spec.options)}
    strange = next((name for name in spec.paper_settings if name not in by_name), None)
    if strange is not None:
        raise UserError(f"paper_settings: expected flags of its options, found {strange!r}")
    try:
        for name, value in spec.paper_settings.items():
            by_name[name].check_type(value)
        build_options(spec.options, spec.paper_settings)
    except UserError as e:
        raise UserError(f"paper_settings: {e}") from None


def _shown(value: Any) -> str:
    return getattr(value, "__name__", repr(value))


# Called with a function's result and arguments; raises a `UserError` if the result is invalid.
Check = Callable[..., None]


@dataclasses.dataclass(frozen=True)
class _UserFunction:
    """A user's function, whose errors show the lines of the user's file.

    Instances with equal functions are equal, so that they share traces.
    """

    file: UserFile
    what: str
    function: Callable[..., Any]
    check: Optional[Check] = dataclasses.field(default=None, compare=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.file.running(self.what):
            result = self.function(*args, **kwargs)
        if self.check is not None:
            self.check(result, *args)
        return result


def checked_algorithm(algorithm: Any, problem: core.Problem, file: UserFile) -> core.Algorithm:
    """Returns a user's algorithm with functions that check their results."""
    _require(algorithm, core.Algorithm, "an Algorithm")
    _require(algorithm.name, str, "name to be str")
    _require(algorithm.problem, core.Problem, "problem to be the Problem that it was given")
    _check_steps(algorithm.steps)
    _require(algorithm.columns, (tuple, list), "columns to be a tuple")
    for column in algorithm.columns:
        _require(column, core.Column, "a Column of a ReportField in columns")
        _require(column.field, core.ReportField, "a Column of a ReportField in columns")
    _check_distinct("columns", [column.field.name for column in algorithm.columns])

    def finished(result: Any, state: Any, *sums: Any) -> None:
        del sums
        with file.running("finish"):
            check_state(state, result)

    def has_models(result: Any, state: Any) -> None:
        del state
        with file.running("models"):
            _check_models(result)

    def user_function(what: str, function: Any, check: Optional[Check] = None) -> _UserFunction:
        return _UserFunction(file, what, function, check)

    def step(unchecked: core.CommunicationStep) -> core.CommunicationStep:
        name = unchecked.name
        bounds = user_function(f"bounds of step {name!r}", unchecked.bounds)

        def worked(result: Any, *arguments: Any) -> None:
            del arguments
            output_bounds = bounds(core.ClientLimits())
            with file.running(f"step {name!r}"):
                output, _ = client_result(unchecked, result)
                check_bounds(name, output, output_bounds)

        return dataclasses.replace(
            unchecked,
            broadcast=user_function(f"broadcast of step {name!r}", unchecked.broadcast),
            client_work=user_function(
                f"client_work of step {name!r}", unchecked.client_work, worked
            ),
            bounds=bounds,
        )

    def checked_column(unchecked: core.Column) -> core.Column:
        name = unchecked.field.name
        shape = [problem.num_domains] if unchecked.field.per_domain else []

        def computed(value: Any, view: core.RoundView) -> None:
            del view
            with file.running(f"column {name!r}"):
                value_shape = tf.convert_to_tensor(value).shape
                if not value_shape.is_compatible_with(shape):
                    raise UserError(f"column {name!r}: expected shape {shape}, found {value_shape}")

        return unchecked._replace(
            value=user_function(f"column {name!r}", unchecked.value, computed)
        )

    return dataclasses.replace(
        algorithm,
        initialize=user_function("initialize", algorithm.initialize),
        steps=tuple(map(step, algorithm.steps)),
        finish=user_function("finish", algorithm.finish, finished),
        columns=tuple(map(checked_column, algorithm.columns)),
        models=user_function("models", algorithm.models, has_models),
        with_weights=user_function("with_weights", algorithm.with_weights),
    )


def trace_round(algorithm: core.Algorithm) -> None:
    """Traces a round with a single client, so that errors appear before training."""

    def round_(examples: Any) -> Any:
        state = algorithm.initialize()
        sums: tuple[Any, ...] = ()
        client_state: Any = ()
        for step in algorithm.steps:
            broadcast = step.broadcast(state, *sums)
            clients = core.Clients.from_arrays(client_arrays(examples, client_state))
            seeded = clients.seeded(tf.zeros([2], tf.int32))
            result = client_result(step, step.client_work(broadcast, seeded))
            client_state = result.state if step.keeps_client_state else client_state
            sums += (result.output,)
        next_state = algorithm.finish(state, *sums)
        algorithm.report(core.RoundView(state, sums, next_state))
        algorithm.models(next_state)
        return algorithm.main_model(next_state)

    # Trace on the CPU, as the traced graph is never executed.
    with tf.device("CPU:0"):
        tf.function(round_, autograph=False).get_concrete_function(algorithm.client_data_spec)


def _require(value: Any, kinds: Any, expected: str) -> None:
    if not isinstance(value, kinds):
        raise UserError(f"build: expected {expected}, found {type(value).__name__}")


def _check_distinct(what: str, names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"build: expected {what} of different names, found two of {twice!r}")


def _check_steps(steps: Any) -> None:
    _require(steps or None, (tuple, list), "steps to be a tuple of at least one")
    for step in steps:
        _require(step, core.CommunicationStep, "a CommunicationStep in steps")
        try:
            hash(step.client_work)
        except TypeError as e:
            raise UserError(
                f"build: expected a function or a HashablePartial with hashable arguments as "
                f"client_work of step {step.name!r}, found {e}"
            ) from e
    _check_distinct("steps", [step.name for step in steps])


def _check_models(models: Any) -> None:
    if not isinstance(models, Mapping) or not models:
        raise UserError(
            "models: expected a mapping of names to ModelWeights, the main model first, found "
            f"{type(models).__name__ if models != {} else 'none'}"
        )
    for name, weights in models.items():
        if not (hasattr(weights, "trainable") and hasattr(weights, "non_trainable")):
            raise UserError(
                f"models: expected ModelWeights under {name!r}, found {type(weights).__name__}"
            )
