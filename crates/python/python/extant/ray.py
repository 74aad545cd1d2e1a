"""Functions on many images, one task an image, on a cluster of Ray.

>>> import extant, extant.ray
>>> for findings in extant.ray.map(["/disks/a.img", "/disks/b.img"], extant.check):
...     print(findings)  # doctest: +SKIP

Ray is imported by the first call; ``pip install extant-ext4[ray]`` installs it.
"""

from __future__ import annotations

import collections
import errno
import itertools
import traceback
from typing import (
    Any,
    Callable,
    Deque,
    Iterable,
    Iterator,
    Literal,
    NamedTuple,
    Optional,
    Tuple,
    TypeVar,
    Union,
    overload,
)

from ._errors import Error

Image = TypeVar("Image")
Result = TypeVar("Result")

#: Options of tasks that :func:`map` itself sets.
_OWN_OPTIONS = ("max_retries", "num_returns", "retry_exceptions")


class TaskLost(Error):
    """The task of an image gave no result: its workers ended in each attempt, for example.

    ``filename`` is the image, and ``__cause__`` the error of Ray.
    """

    kind = "lost"


class RemoteTraceback(Exception):
    """The cause of an error of a function: its traceback in the worker, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Outcome(NamedTuple):
    """The end of a task, as a worker sends it."""

    value: Any
    error: Optional[Exception] = None
    traceback: str = ""


@overload
def map(
    images: Iterable[Image],
    function: Callable[[Image], Result],
    *,
    retries: int = ...,
    in_flight: int = ...,
    errors: Literal["raise"] = ...,
    **options: Any,
) -> Iterator[Result]: ...


@overload
def map(
    images: Iterable[Image],
    function: Callable[[Image], Result],
    *,
    retries: int = ...,
    in_flight: int = ...,
    errors: Literal["return"],
    **options: Any,
) -> Iterator[Union[Result, Exception]]: ...


def map(
    images: Iterable[Image],
    function: Callable[[Image], Result],
    *,
    retries: int = 3,
    in_flight: int = 256,
    errors: str = "raise",
    **options: Any,
) -> Iterator[Any]:
    """Calls ``function(image)`` for each image on a Ray cluster, and yields the results in order.

    Each image has one result, also when workers or machines die. Its function may then have run
    more than once, and must be repeatable: ``extant.check`` is, and ``extant.build`` with
    ``overwrite=True``. The package must be installed on each machine of the cluster, and a path
    must lead to the same image there.

    Tasks begin with the first ``next``. The end of the iterator, or an error, cancels the tasks
    that are left.

    :param retries: attempts after the first one, for tasks whose worker or machine died. Errors of
        the function are results, and not repeated.
    :param in_flight: tasks that are begun, and results that wait for those before them. More images
        are not taken from ``images``. Twice the processors of the cluster, or more, keep it busy.
    :param errors: ``"raise"`` ends with the first error, in the order of the images; ``"return"``
        yields errors in place of results.
    :param options: options of Ray's tasks, such as ``num_cpus=2`` or ``memory=1 << 30``.
    """
    if errors not in ("raise", "return"):
        raise ValueError(f'errors must be "raise" or "return", not {errors!r}')
    if in_flight < 1:
        raise ValueError(f"in_flight must be 1 or more, not {in_flight}")
    if retries < 0:
        raise ValueError(f"retries must be 0 or more, not {retries}")
    for name in _OWN_OPTIONS:
        if name in options:
            raise TypeError(f"{name} is no option here; retries is the number of further attempts")
    ray = _import_ray()

    # Ray stores the definition of a remote function, with `function`, once for all tasks.
    def attempt(image: Image) -> _Outcome:
        return _attempt(function, image)

    task = ray.remote(max_retries=retries, **options)(attempt)
    return _results(ray, task, iter(images), in_flight, errors == "raise")


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        message = "extant.ray needs Ray: install it by `pip install extant-ext4[ray]`"
        raise ImportError(message, name="ray") from error
    return ray


def _results(
    ray: Any, task: Any, images: Iterator[Any], in_flight: int, raises: bool
) -> Iterator[Any]:
    begun: Deque[Tuple[Any, Any]] = collections.deque()
    try:
        while True:
            for image in itertools.islice(images, in_flight - len(begun)):
                begun.append((image, task.remote(image)))
            if not begun:
                return
            outcome = _outcome(ray, *begun[0])
            # The last reference to the result in the cluster.
            begun.popleft()
            if outcome.error is None:
                yield outcome.value
            elif raises:
                raise outcome.error
            else:
                yield outcome.error
    finally:
        _cancel(ray, begun)


def _outcome(ray: Any, image: Any, reference: Any) -> _Outcome:
    """Waits for the end of a task."""
    try:
        outcome: _Outcome = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        # The result, or the function, did not get through.
        return _Outcome(None, error)
    except ray.exceptions.RayError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        lost = TaskLost(errno.EIO, f"map of {image}: no result: {reason}", image)
        lost.__cause__ = error
        return _Outcome(None, lost)
    if outcome.error is not None:
        outcome.error.__cause__ = RemoteTraceback(outcome.traceback)
    return outcome


def _cancel(ray: Any, begun: Deque[Tuple[Any, Any]]) -> None:
    # Calls after `ray.shutdown()` would start a new cluster.
    if begun and ray.is_initialized():
        # The last ones first: an end of a task before them would begin one of them.
        for _, reference in reversed(begun):
            ray.cancel(reference)


def _attempt(function: Callable[[Any], Any], image: Any) -> _Outcome:
    """Runs a function in a worker."""
    try:
        return _Outcome(function(image))
    except Exception as error:
        return _Outcome(None, _portable(error), traceback.format_exc())


def _portable(error: Exception) -> Exception:
    """Returns an error as it is, or its text if it cannot be sent."""
    from ray import cloudpickle

    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
