"""The inputs of an experiment, built for this process."""

from collections.abc import Sequence

import jax

from pax_compat import base_input, errors
from pax_compat import config as config_lib


class Inputs:
  """The training input and the eval inputs; closed at the end of a `with`.

  Attributes:
    train: the training input.
    eval: the eval inputs by name.
  """

  train: base_input.BaseInput
  eval: dict[str, base_input.BaseInput]

  def __init__(self, datasets: Sequence[config_lib.Config]):
    """Builds all of them.

    Args:
      datasets: configs of inputs.

    Raises:
      UserError: names are not unique, there is not exactly one training input,
        or an input cannot be built.
    """
    names = [config.name for config in datasets]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
      raise errors.UserError(
        f'several datasets are called {", ".join(repeated)}; expected names'
        ' that differ'
      )
    training = [config.name for config in datasets if config.is_training]
    if len(training) != 1:
      raise errors.UserError(
        f'of the datasets {", ".join(names)}, {len(training)} are training'
        ' datasets; expected exactly one'
      )
    self._built = {}
    try:
      for config in datasets:
        self._built[config.name] = config.Instantiate(
          num_infeed_hosts=jax.process_count(),
          infeed_host_index=jax.process_index(),
        )
    except BaseException:
      self.close()
      raise
    self.train = self._built[training[0]]
    self.eval = {
      name: data for name, data in self._built.items() if name != training[0]
    }

  def __enter__(self) -> 'Inputs':
    return self

  def __exit__(self, *unused_error):
    self.close()

  def close(self):
    """Closes every input."""
    for data in self._built.values():
      data.close()
