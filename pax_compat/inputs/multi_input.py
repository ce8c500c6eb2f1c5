"""Several inputs side by side, as one."""

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from absl import logging

from pax_compat import base_input, errors
from pax_compat.config import REQUIRED, Config
from pax_compat.input_core import prompts as prompts_lib
from pax_compat.input_core import resharding
from pax_compat.inputs import composed_input
from pax_compat.nested_map import NestedMap


class MultiInput(composed_input.ComposedInput):
  """Gives a batch of each of several inputs, under the input's name.

  All leaves have the same outer batch size, the greatest common divisor of the
  inputs' batch sizes: [outer, inner, ...], where inner differs between inputs.
  The model merges the two dimensions. Metrics that an input computes over all
  examples are left out, as a row contains several examples.

  What the trainer sets for this input, and `is_training`, `reset_for_eval` and
  `eval_loop_num_batches`, applies to each of them. Their configs are not
  changed.

  Attributes:
    input_to_params: config of each input, by its name.
    default_input: name of the input whose tokenizer is used by default.

  Raises:
    UserError: inputs are missing, one has no batch size, `default_input` is not
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
    self._build(child_configs(self))
    for data in self.children():
      if not self.is_training and any(
        map(data.has_example_metrics, ('eval', 'decode'))
      ):
        logging.warning(
          '%s: the metrics that %s computes over all examples are left out;'
          ' expected it as a separate dataset',
          self.name,
          data.name,
        )

  @classmethod
  def get_batch_size(cls, params) -> int:
    """Returns the outer batch size, which divides those of all inputs."""
    sizes = (
      config.cls.get_batch_size(config)
      for config in params.input_to_params.values()
    )
    return math.gcd(*sizes)

  def get_next(self) -> NestedMap:
    return jax.tree.map(self._with_outer, self._next_of(self._inputs))

  def _with_outer(self, x: np.ndarray) -> np.ndarray:
    return x.reshape(self._outer_shape(x))

  def _outer_shape(self, x) -> tuple[int, ...]:
    """Returns the shape [outer, inner, ...] for a leaf [B, ...]."""
    return resharding.split_shape(x, self._outer, name=self.name)

  def get_child(self, input_name: str) -> base_input.BaseInput:
    """Returns one of the inputs.

    Raises:
      UserError: the name of the input is unknown.
    """
    self._check_known(input_name)
    return self._inputs[input_name]

  def batch_specs(self) -> NestedMap | None:
    specs = {k: data.batch_specs() for k, data in self._inputs.items()}
    if self.batch_padding_size or None in specs.values():
      return None
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(self._outer_shape(x), x.dtype),
      NestedMap(specs),
    )

  def ids_to_strings(
    self, ids, lengths, key: str | None = None, input_name: str | None = None
  ) -> Sequence[str]:
    """Returns B strings for token ids.

    Args:
      ids: [B, T], int.
      lengths: [B], int, number of tokens in each row.
      key: name of the tokenizer, of an input that has several.
      input_name: the input whose tokenizer is used; None for `default_input`.

    Raises:
      UserError: neither `input_name` nor `default_input` is set.
    """
    name = input_name or self.default_input
    self.check(
      name is not None,
      f'default_input of {self.name} is not set; expected it, or input_name,'
      f' to be one of {", ".join(self._inputs)}',
    )
    return self.get_child(name).ids_to_strings(ids, lengths, key)

  def prompts(
    self, strings: Sequence[str], key: str | None = None
  ) -> prompts_lib.Prompts:
    """Returns prompts, by the tokenizer of `default_input`.

    Raises:
      UserError: it is not set, or does not tokenize strings.
    """
    self.check(
      self.default_input is not None,
      f'default_input of {self.name} is not set; expected one of'
      f' {", ".join(self._inputs)}',
    )
    return self.get_child(self.default_input).prompts(strings, key)

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
    Copies of `input_to_params`, with the fields that apply to all of them.
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
