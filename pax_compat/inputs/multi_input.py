"""Several inputs side by side, as one."""

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from absl import logging

from pax_compat import base_input, errors
from pax_compat.config import REQUIRED, Config
from pax_compat.inputs import composed_state
from pax_compat.nested_map import NestedMap


class MultiInput(base_input.BaseInput):
  """Gives a batch of each of several inputs, under the input's name.

  All leaves get the same outer batch size, which is the greatest common divisor
  of the inputs' own: [outer, inner, ...], where inner differs between inputs.
  The model puts the two dimensions together again. Metrics that an input makes
  of all examples are left out, as rows have several examples.

  What the trainer sets for this input, and `is_training`, `reset_for_eval` and
  `eval_loop_num_batches`, holds for each of them. Their configs stay as they
  are.

  Attributes:
    input_to_params: config of each input, by its name.
    default_input: whose tokenizer makes texts where nobody names an input.

  Raises:
    UserError: there is no input, one has no batch size, `default_input` is not
      among them, `batch_size` is set, or several are to be reset for
      evaluations, each of which could end at another batch.
  """

  input_to_params: Mapping[str, Config] = REQUIRED
  default_input: str | None = None

  def __post_init__(self):
    super().__post_init__()
    self.check(
      self.batch_size is None,
      f'batch_size of {self.name} is {self.batch_size}; expected it on each of'
      ' the inputs',
    )
    self.check(
      bool(self.input_to_params),
      f'input_to_params of {self.name} is empty; expected a config by name',
    )
    self.check(
      not self.reset_for_eval or len(self.input_to_params) == 1,
      f'reset_for_eval of {self.name} is set with the inputs'
      f' {", ".join(self.input_to_params)}; expected a single one with it',
    )
    if self.default_input is not None:
      self._check_known(self.default_input)
    self._outer = self.get_batch_size(self)
    self._inputs: dict[str, base_input.BaseInput] = {}
    try:
      for name, config in child_configs(self).items():
        self._inputs[name] = config.Instantiate()
    except BaseException:
      self.close()
      raise
    for data in self._inputs.values():
      if not self.is_training and any(
        map(data.has_example_metrics, ('eval', 'decode'))
      ):
        logging.warning(
          '%s: the metrics that %s makes of all examples are left out; expected'
          ' it as a dataset of its own',
          self.name,
          data.name,
        )

  @property
  def state_fits_any_hosts(self) -> bool:
    return composed_state.fit_any_hosts(self._inputs)

  @classmethod
  def get_batch_size(cls, params) -> int:
    """Returns the outer batch size, which all inputs' are multiples of."""
    sizes = (
      config.cls.get_batch_size(config)
      for config in params.input_to_params.values()
    )
    return math.gcd(*sizes)

  def get_next(self) -> NestedMap:
    batches = {k: data.get_next_padded() for k, data in self._inputs.items()}
    return jax.tree.map(self._with_outer, NestedMap(batches))

  def _with_outer(self, x: np.ndarray) -> np.ndarray:
    return x.reshape(self._shape_in_parts(x, self._outer))

  def is_host_field(self, path, leaf):
    name, _, rest = path.partition('.')
    if name not in self._inputs:
      return super().is_host_field(path, leaf)
    return self._inputs[name].is_host_field(rest, leaf)

  def get_child(self, input_name: str) -> base_input.BaseInput:
    """Returns one of the inputs.

    Raises:
      UserError: there is none of that name.
    """
    self._check_known(input_name)
    return self._inputs[input_name]

  def reset(self):
    for data in self._inputs.values():
      data.reset()

  def resume_at(self, step: int):
    for data in self._inputs.values():
      data.resume_at(step)

  def order_digest(self) -> bytes | None:
    return composed_state.order_digest(self._inputs)

  def batch_specs(self) -> NestedMap | None:
    specs = {k: data.batch_specs() for k, data in self._inputs.items()}
    if self.batch_padding_size or None in specs.values():
      return None
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        self._shape_in_parts(x, self._outer), x.dtype
      ),
      NestedMap(specs),
    )

  def after_restart(self) -> str:
    return composed_state.after_restart(self._inputs)

  def _get_state_internal(self) -> bytes:
    return composed_state.composed(self._inputs)

  def _set_state_internal(self, state: bytes):
    composed_state.decomposed(state, self._inputs, of=self.name)

  def parts(self):
    return self._inputs.values()

  def ids_to_strings(
    self, ids, lengths, key: str | None = None, input_name: str | None = None
  ) -> Sequence[str]:
    """Returns the texts of `ids` [B, T], whose first `lengths` [B] count.

    Args:
      ids: int.
      lengths: int.
      key: which tokenizer, of an input that has several.
      input_name: whose tokenizer; None for that of `default_input`.

    Raises:
      UserError: neither says whose.
    """
    name = input_name or self.default_input
    self.check(
      name is not None,
      f'default_input of {self.name} is not set; expected it, or input_name,'
      f' to be one of {", ".join(self._inputs)}',
    )
    return self.get_child(name).ids_to_strings(ids, lengths, key)

  def tokenizers(self) -> dict[str, str]:
    return {
      f'{child} {name}'.strip(): description
      for child, data in self._inputs.items()
      for name, description in data.tokenizers().items()
    }

  def _check_known(self, name: str):
    self.check(
      name in self.input_to_params,
      f'{self.name} has no input {name!r}'
      + errors.did_you_mean(name, self.input_to_params),
    )


def child_configs(of: MultiInput | Config) -> dict[str, Config]:
  """Returns the configs that the inputs of a `MultiInput` are built from.

  Args:
    of: the input, or its config.

  Returns:
    Copies of `input_to_params`, with what is set for all of them.
  """
  return {
    name: config.clone().set(
      name=f'{of.name}_{name}',
      num_infeed_hosts=of.num_infeed_hosts,
      infeed_host_index=of.infeed_host_index,
      input_checkpointing_enabled=of.input_checkpointing_enabled,
      is_training=of.is_training,
      reset_for_eval=of.reset_for_eval,
      eval_loop_num_batches=of.eval_loop_num_batches,
    )
    for name, config in of.input_to_params.items()
  }
