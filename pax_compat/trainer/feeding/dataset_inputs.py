"""The inputs of an experiment, built for this process."""

from collections.abc import Sequence

import fiddle as fdl

from pax_compat import base_input, errors
from pax_compat import config as config_lib


class Inputs:
  """The training input and the eval inputs; closed at the end of a `with`.

  Attributes:
    train: the training input; None if nothing is trained.
    eval: the eval inputs by name.
    decode: the inputs to decode, by name.
  """

  train: base_input.BaseInput | None
  eval: dict[str, base_input.BaseInput]
  decode: dict[str, base_input.BaseInput]

  def __init__(
    self,
    datasets: Sequence[config_lib.Config],
    decode_datasets: Sequence[config_lib.Config] = (),
    *,
    num_infeed_hosts: int = 1,
    infeed_host_index: int = 0,
    input_checkpointing_enabled: bool = False,
    known_ids: int | None = None,
    trains: bool = True,
  ):
    """Builds all of them.

    Args:
      datasets: configs of the training input and the eval inputs.
      decode_datasets: configs of the inputs to decode.
      num_infeed_hosts: number of processes that read different examples. A
        config with another number above 1 keeps its global batch.
      infeed_host_index: which of them this process is.
      input_checkpointing_enabled: whether the training input must have a
        state.
      known_ids: number of token ids of the model; None if uncertain.
      trains: whether there is a training input; without, `train` is None.

    Raises:
      UserError: names of eval or decode inputs are not unique, there is not
        exactly one training input, or an input cannot be built. Fields of all
        of them are checked before the first is built.
    """
    names = [config.name for config in datasets]
    # The training input may have the name of an eval one, as in Pax.
    _check_unique([c.name for c in datasets if not c.is_training])
    _check_unique([config.name for config in decode_datasets])
    training = [i for i, config in enumerate(datasets) if config.is_training]
    if len(training) != trains:
      raise errors.UserError(
        f'of the datasets {", ".join(names) or "(none)"},'
        f' {len(training)} are training datasets; expected'
        f' {"exactly one" if trains else "none"} with is_training=True'
      )
    for config in (*datasets, *decode_datasets):
      fdl.get_callable(config).check_fields(config)
    self._built: list[base_input.BaseInput] = []
    try:
      for config in (*datasets, *decode_datasets):
        self._built.append(
          config.Instantiate(
            num_infeed_hosts=num_infeed_hosts,
            infeed_host_index=infeed_host_index,
            input_checkpointing_enabled=(
              input_checkpointing_enabled and config.is_training
            ),
            known_ids=known_ids,
            **_batch_size(config, num_infeed_hosts),
          )
        )
    except BaseException:
      self.close()
      raise
    self.train = self._built[training[0]] if trains else None
    self.eval = {
      name: data
      for name, data in zip(names, self._built, strict=False)
      if data is not self.train
    }
    self.decode = {
      config.name: data
      for config, data in zip(
        decode_datasets, self._built[len(names) :], strict=True
      )
    }

  def __enter__(self) -> 'Inputs':
    return self

  def __exit__(self, *unused_error):
    self.close()

  def close(self):
    """Closes every input."""
    for data in self._built:
      data.close()


def _batch_size(config: config_lib.Config, hosts: int) -> dict[str, int]:
  """Returns the `batch_size` of a host, if others read than the config expects.

  A config with `num_infeed_hosts` above 1 defines the rows of all hosts. On
  some meshes, processes read the same rows, so that fewer hosts read them.

  Args:
    config: of an input.
    hosts: number of processes that read different rows.

  Raises:
    UserError: the hosts do not divide the rows.
  """
  planned = config.num_infeed_hosts
  if planned in (1, hosts) or config.batch_size is None:
    return {}
  rows = config.batch_size * planned
  if rows % hosts:
    raise errors.UserError(
      f'the dataset {config.name!r} has batches of {rows} rows ({planned} hosts'
      f' with {config.batch_size} each); on this mesh {hosts} hosts read'
      ' different rows, and cannot divide them'
    )
  return {'batch_size': rows // hosts}


def _check_unique(names: Sequence[str]):
  repeated = sorted({n for n in names if names.count(n) > 1})
  if repeated:
    raise errors.UserError(
      f'several datasets are called {", ".join(repeated)}; expected names that'
      ' differ'
    )
