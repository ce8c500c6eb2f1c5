"""What a model is made of: the first batch, or what is known of batches."""

from pax_compat import base_input, checkpoints, errors
from pax_compat.experiments import resolved
from pax_compat.input_core import host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.feeding import prefetching


class FirstBatch:
  """The first batch of a training input, if need be before it is there.

  Where the experiment knows what batches are like, nothing waits for the input:
  the model is built and compiled while the first batch is read, which is then
  held against what was known.

  Attributes:
    example: what the model is initialised with, without the fields that stay on
      the host; only its shapes matter.
    is_known_before: whether that was known without a batch of the input.
  """

  example: NestedMap
  is_known_before: bool

  def __init__(
    self,
    experiment: resolved.ResolvedExperiment,
    data: base_input.BaseInput,
    *,
    enforced: bool,
  ):
    """Asks the experiment, or else the input.

    Args:
      experiment: the experiment.
      data: its training input. No batch is taken from it.
      enforced: whether what the experiment says of batches must hold.

    Raises:
      UserError: the input has no batch, or another one than the experiment
        says.
    """
    self._data = data
    self._specs = _specs(experiment, data) if enforced else None
    # Where batches differ, no single one makes the whole model.
    alike = type(data).example_batch is base_input.BaseInput.example_batch
    self.is_known_before = self._specs is not None and alike
    if self.is_known_before:
      self.example = self._specs
      return
    batch = _peeked(data)
    if batch is None:
      raise errors.UserError(f'the dataset {data.name!r} has no batch')
    self._check(batch)
    self.example = host_fields.for_devices(
      data.example_batch(batch), data.is_host_field
    )

  def get_next_padded(self) -> NestedMap:
    """Returns the next batch of the input, as its own method does.

    Raises:
      UserError: it is the first one, and not as the experiment says.
      StopIteration: the data is at its end.
    """
    batch = self._data.get_next_padded()
    self._check(batch)
    return batch

  def _check(self, batch: NestedMap):
    """Holds the first batch against what the experiment says of batches."""
    specs, self._specs = self._specs, None
    if specs is None:
      return
    wanted, found = _described(specs), _described(self._data.specs_of(batch))
    nothing = 'nothing'
    lines = [
      f'{path}: expected {wanted.get(path, nothing)}, got'
      f' {found.get(path, nothing)}'
      for path in sorted(wanted.keys() | found.keys())
      if wanted.get(path) != found.get(path)
    ]
    if lines:
      raise errors.UserError(
        'the first training batch is not what'
        ' get_input_specs_provider_params() says'
        ' (Train.enforce_input_specs=False lets it pass):\n  '
        + '\n  '.join(lines)
      )


def _peeked(data: base_input.BaseInput) -> NestedMap | None:
  """Returns what `peek_padded` does, waited for as other batches are."""

  def peek():
    batch = data.peek_padded()
    if batch is None:
      raise StopIteration
    return batch

  with prefetching.Feeder(
    peek,
    lambda batch: batch,
    max_batches=1,
    check=data.raise_if_broken,
    interrupt=data.interrupt,
  ) as feeder:
    fed = feeder.peek()
  return None if fed is None else fed.arrays


def _specs(experiment, data: base_input.BaseInput) -> NestedMap | None:
  provider = experiment.get_input_specs_provider_params()
  if provider is None:
    return None
  return data.specs_of(provider.Instantiate().get_input_specs())


def _described(specs: NestedMap) -> dict[str, str]:
  return {
    path: f'{x.dtype}[{",".join(map(str, x.shape))}]'
    for path, x in checkpoints.state_paths(specs).items()
  }
