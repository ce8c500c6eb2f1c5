"""Residual adapters, https://arxiv.org/abs/1902.00751.

Shapes: D model dims, K bottleneck dims, "..." positions.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import activations, normalizations, transformers

_MODES = ('sequential', 'parallel')


class MultitaskResidualAdapter(base_layer.BaseLayer):
  """Two layers with a bottleneck between them, separate for each task.

  Attributes:
    input_dims: D.
    bottleneck_dims: K.
    num_tasks: number of tasks.
    norm_tpl: normalization of the inputs; None for none.
    activation_tpl: activation of the bottleneck.
  """

  input_dims: int = REQUIRED
  bottleneck_dims: int = REQUIRED
  num_tasks: int = 1
  norm_tpl: Config | None = sub_config_field(normalizations.LayerNorm)
  activation_tpl: Config = sub_config_field(activations.ReLU)

  def setup(self):
    if self.norm_tpl is not None:
      self.create_child('norm', self.norm_tpl, dim=self.input_dims)
    tasks, d, k = self.num_tasks, self.input_dims, self.bottleneck_dims
    self.create_variable('down_w', WeightHParams([tasks, d, k]))
    self.create_variable('down_b', WeightHParams([tasks, k]))
    zero = WeightInit.Constant(0.0)
    self.create_variable('up_w', WeightHParams([tasks, k, d], zero))
    self.create_variable('up_b', WeightHParams([tasks, d]))
    self.create_child('activation', self.activation_tpl)

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    tasks: jax.Array | None = None,
    add_residual: bool = True,
  ) -> jax.Array:
    """Adapts the inputs; returns [B, ..., D].

    Args:
      inputs: [B, ..., D].
      paddings: [B, ...], for the normalization only; None if there is none.
      tasks: int, the task of each position or of each row: the inputs' shape
        without its last or its last two dimensions; None for a single task.
      add_residual: whether the inputs are added.

    Raises:
      UserError: the tasks are missing, or their shape does not fit.
    """
    tasks = self._tasks(inputs, tasks)
    normed = inputs
    if self.norm_tpl is not None:
      normed = self.norm(inputs, paddings)
    one_hot = jax.nn.one_hot(tasks, self.num_tasks, dtype=inputs.dtype)
    while one_hot.ndim < inputs.ndim:
      one_hot = one_hot[..., None, :]
    hidden = self._project('down', normed, one_hot)
    outputs = self._project('up', self.activation(hidden), one_hot)
    return inputs + outputs if add_residual else outputs

  def _tasks(self, inputs, tasks):
    if tasks is None:
      if self.num_tasks != 1:
        raise errors.wrong_field(self, 'num_tasks', 'the argument tasks')
      return jnp.zeros(inputs.shape[:-1], int)
    missing = inputs.ndim - tasks.ndim
    if missing not in (1, 2) or tasks.shape != inputs.shape[: tasks.ndim]:
      raise errors.UserError(
        f'MultitaskResidualAdapter: tasks have the shape {list(tasks.shape)},'
        f' inputs {list(inputs.shape)}; expected that without the last or the'
        ' last two dimensions'
      )
    return tasks

  def _project(self, name: str, x, one_hot) -> jax.Array:
    """Multiplies with the weights of each position's task."""
    weight = self.get_theta(f'{name}_w')
    bias = self.get_theta(f'{name}_b')
    if self.num_tasks == 1:
      return jnp.einsum('...i,io->...o', x, weight[0]) + bias[0]
    # With the few tasks outermost, no weight is copied for each position.
    by_task = jnp.einsum('...i,kio->...ko', x, weight)
    return jnp.einsum('...ko,...k->...o', by_task + bias, one_hot)


class AdaptedTransformerFeedForward(transformers.TransformerFeedForward):
  """A feed-forward block with an adapter before the residual connection.

  Attributes:
    adapter_tpl: the adapter.
    mode: 'sequential', its input is the branch's output; 'parallel', its input
      is the block's input.
  """

  adapter_tpl: Config = REQUIRED
  mode: str = 'sequential'

  def setup(self):
    super().setup()
    errors.check_choice(self, 'mode', _MODES)
    if self.residual_droppath_prob:
      raise errors.wrong_field(
        self, 'residual_droppath_prob', '0 with an adapter'
      )
    self.create_child('adapters', self.adapter_tpl)

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    tasks: jax.Array | None = None,
  ) -> jax.Array:
    """Computes the block; returns [B, T, D].

    Args:
      inputs: [B, T, D].
      paddings: [B, T], 1 where a position is padding; None if there is none.
      segment_ids: not used.
      tasks: see `MultitaskResidualAdapter`.
    """
    del segment_ids
    x = super().__call__(inputs, paddings)
    if self.add_skip_connection:
      x = (x - inputs) / self.residual_weight
    source = x if self.mode == 'sequential' else inputs
    x += self.adapters(source, paddings, tasks=tasks, add_residual=False)
    return inputs + x * self.residual_weight if self.add_skip_connection else x
