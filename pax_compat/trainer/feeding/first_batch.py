"""The example that initialises a model: the first batch, or specs of it."""

import contextlib
import re
from collections.abc import Iterator

import jax

from pax_compat import base_input, checkpoints, errors
from pax_compat.experiments import resolved
from pax_compat.input_core import host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.feeding import (
  agreement,
  batch_checks,
  pipeline,
  prefetching,
  sources,
)


class FirstBatch:
  """The first batch of a training input, or specs of it.

  If the experiment declares specs, nothing waits for the input: the model is
  built and compiled while the first batch is read, which is then compared with
  the specs.

  Attributes:
    example: initialises the model, without the fields that stay on the host;
      only its shapes matter.
    is_known_before: whether `example` was known without reading a batch.
    has_its_shapes: whether `example` has the shapes of the first batch.
  """

  example: NestedMap
  is_known_before: bool
  has_its_shapes: bool

  def __init__(
    self,
    experiment: resolved.ResolvedExperiment,
    data: base_input.BaseInput,
    *,
    enforced: bool,
  ):
    """Takes the specs of the experiment, or else peeks at the input.

    Args:
      experiment: the experiment.
      data: its training input. No batch is taken from it.
      enforced: whether batches must have the specs of the experiment.

    Raises:
      UserError: the input has no batch, or the batch differs from the specs.
    """
    self._data = data
    self._specs = _specs(experiment, data) if enforced else None
    # If batches differ, no single one initialises the whole model.
    alike = type(data).example_batch is base_input.BaseInput.example_batch
    self.is_known_before = self._specs is not None and alike
    self.has_its_shapes = alike
    if self.is_known_before:
      self.example = self._specs
      return
    batch = peeked(data)
    if batch is None:
      raise errors.UserError(f'the dataset {data.name!r} has no batch')
    self.check(batch)
    agreement.warn_of_equal_batches(data, batch)
    self.example = host_fields.for_devices(
      data.example_batch(batch), data.is_host_field
    )

  def check(self, batch: NestedMap):
    """Compares the first batch with the specs; ignores later ones.

    Raises:
      UserError: they differ.
    """
    specs, self._specs = self._specs, None
    if specs is None:
      return
    wanted, found = _by_path(specs), _by_path(self._data.specs_of(batch))
    nothing = 'nothing'
    lines = [
      f'{path}: expected {wanted.get(path, nothing)}, got'
      f' {found.get(path, nothing)}'
      for path in sorted(wanted.keys() | found.keys())
      if wanted.get(path) != found.get(path)
    ]
    if lines:
      raise errors.UserError(
        'the first training batch differs from'
        ' get_input_specs_provider_params()'
        ' (Train.enforce_input_specs=False skips this check):\n  '
        + '\n  '.join(lines)
      )


@contextlib.contextmanager
def tried(batch: NestedMap, data: base_input.BaseInput) -> Iterator[None]:
  """Within it, errors of a model name the batch that it was made or tried with.

  Args:
    batch: the first batch of this process, or its shapes.
    data: the input.

  Raises:
    UserError: one of the model, with the batch if it names a field; or any
      error of it, if the fields of the batch have different numbers of rows,
      which few models can use.
    Exception: any other error, with a note.
  """
  try:
    yield
  except Exception as e:
    fields = _by_path(batch)
    shapes = ', '.join(f'{path} {spec}' for path, spec in fields.items())
    where = f'with {sources.Source(data).batch(1)}: {shapes}'
    rows = {x.shape[:1] for x in jax.tree.leaves(batch)}
    if isinstance(e, errors.UserError):
      # Most are about the config.
      words = set(re.findall(r'\w+', str(e)))
      if words & {path.rpartition('.')[2] for path in fields}:
        e.args = (f'{e}\n  {where}',)
    elif len(rows) > 1:
      raise errors.UserError(
        'the fields of the batch have different numbers of rows, which the'
        f' model cannot use: {errors.one_line(e)}\n  {where}'
      ) from e
    else:
      e.add_note(where)
    raise


def peeked(data: base_input.BaseInput) -> NestedMap | None:
  """Returns `peek_padded`, awaited by a `Prefetcher` as other batches are."""

  def peek():
    batch = data.peek_padded()
    if batch is None:
      raise StopIteration
    return batch

  with prefetching.Prefetcher(
    pipeline.Pipeline(
      [
        pipeline.read(peek),
        pipeline.check_arrays(batch_checks.BatchCheck(data)),
      ],
      sources.Source(data),
    ),
    max_batches=1,
    check=data.raise_if_broken,
    interrupt=data.interrupt,
  ) as prefetcher:
    first = prefetcher.peek()
  return None if first is None else first.arrays


def _specs(experiment, data: base_input.BaseInput) -> NestedMap | None:
  provider = experiment.get_input_specs_provider_params()
  if provider is None:
    return None
  return data.specs_of(provider.Instantiate().get_input_specs())


def _by_path(specs: NestedMap) -> dict[str, str]:
  return {
    path: f'{x.dtype}[{",".join(map(str, x.shape))}]'
    for path, x in checkpoints.state_paths(specs).items()
  }
