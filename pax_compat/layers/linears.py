"""Linear and feed-forward layers.

Shapes: I input dims, O output dims.
"""

from collections.abc import Sequence
from typing import ClassVar

import jax
from jax.ad_checkpoint import checkpoint_name

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core.gradients import ghost_norms
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers import activations, base_ops
from pax_compat.layers.input_checks import check_last_dim
from pax_compat.layers.stacking_over_time import (  # noqa: F401 (as in Pax)
  StackingOverTime,
)
from pax_compat.layers.template_fields import agreed, split


class OutputSharding(base_layer.BaseLayer.ActivationSharding):
  """Sharding of the output of a projection over the mesh.

  Attributes:
    extend_step_out: mapping of the output of a decoding step, which has two
      dimensions; None takes the first and the last entry of `out`.
  """

  extend_step_out: SplitDimsMapping = None


def output_mapping(sharding: Config, num_dims: int) -> SplitDimsMapping:
  """Returns the split mapping of a projection's output.

  Args:
    sharding: config of an `OutputSharding`.
    num_dims: rank of the output; 2 may be a decoding step.
  """
  if num_dims == 2 and sharding.extend_step_out is not None:
    return sharding.extend_step_out
  out = sharding.out
  if num_dims == 2 and out is not None and len(out) == 3:
    return (out[0], out[2])
  return out


def no_activation(where: str, tpl: Config) -> dict[str, Config]:
  """Returns the field for `create_child` that removes an activation.

  Args:
    where: name of the template, for error messages.
    tpl: template of a `FeedForward`.

  Raises:
    UserError: the template has an activation other than the default one.
  """
  activation = tpl.activation_tpl.cls
  if activation not in (activations.ReLU, activations.Identity):
    raise errors.UserError(
      f'{where}.activation_tpl is {activation.__name__}; expected no'
      ' activation here'
    )
  return {'activation_tpl': activations.Identity.config()}


class Linear(base_layer.BaseLayer):
  """A product with a matrix [I, O], without a bias.

  Attributes:
    input_dims: I.
    output_dims: O.
    weight_init: initializer of the matrix; None takes `params_init`.
    einsum_tpl: the product; see `base_ops`.
  """

  ActivationSharding = OutputSharding
  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *base_layer.BaseLayer.SILENT_UNLESS_SET,
    'einsum_tpl',
  )

  input_dims: int = REQUIRED
  output_dims: int = REQUIRED
  weight_init: WeightInit | None = None
  einsum_tpl: Config = sub_config_field(base_ops.EinsumOp)

  def setup(self):
    self.create_child('einsum', self.einsum_tpl.clone())
    self.create_variable(
      'w',
      WeightHParams(
        [self.input_dims, self.output_dims],
        self.weight_init,
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      ),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., I] to [..., O]."""
    check_last_dim(self, 'input_dims', inputs)
    outputs = self.product('...i,io->...o', inputs, self.theta.w)
    return self.shard(
      outputs, output_mapping(self.activation_split_dims_mapping, outputs.ndim)
    )

  def product(
    self, equation: str, inputs: jax.Array, weight: jax.Array
  ) -> jax.Array:
    """Returns the product with the weight."""
    return base_ops.weight_product(self, equation, inputs, weight)


class Bias(base_layer.BaseLayer):
  """Adds a vector.

  Attributes:
    dims: O.
    bias_init: initial value of every element.
  """

  dims: int = REQUIRED
  bias_init: float = 0.0

  def setup(self):
    self.create_variable(
      'b',
      WeightHParams(
        [self.dims],
        WeightInit.Constant(self.bias_init),
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      ),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns `inputs` [..., O] plus the bias."""
    check_last_dim(self, 'dims', inputs)
    outputs = inputs + self.theta.b
    outputs = ghost_norms.added(self, 'b', outputs, inputs.ndim - 1)
    return self.shard(outputs, self.activation_split_dims_mapping.out)


class FeedForward(base_layer.BaseLayer):
  """A linear layer, a bias and an activation.

  The bias is split as the last dimension of the matrix.

  Attributes:
    input_dims: I.
    output_dims: O.
    has_bias: whether there is a bias.
    weight_init: initializer of the matrix; None leaves it to `linear_tpl`.
    bias_init: initial value of the bias; None leaves it to `bias_tpl`, whose
      default is 0.
    checkpoint_str: `checkpoint_name` of the linear layer's output, for
      rematerialisation policies; None for no name.
    linear_tpl: the linear layer.
    bias_tpl: the bias.
    activation_tpl: the activation.
  """

  ActivationSharding = OutputSharding

  input_dims: int = REQUIRED
  output_dims: int = REQUIRED
  has_bias: bool = True
  weight_init: WeightInit | None = None
  bias_init: float | None = None
  checkpoint_str: str | None = None
  linear_tpl: Config = sub_config_field(Linear)
  bias_tpl: Config = sub_config_field(Bias)
  activation_tpl: Config = sub_config_field(activations.ReLU)

  def setup(self):
    tpl = self.linear_tpl
    weights = self.weight_split_dims_mapping.wt
    outputs = self.activation_split_dims_mapping
    self.create_child(
      'linear',
      tpl,
      **agreed(
        'FeedForward.linear_tpl',
        tpl,
        input_dims=self.input_dims,
        output_dims=self.output_dims,
        weight_init=self.weight_init,
      ),
      **split(tpl, 'weight_split_dims_mapping', wt=weights),
      **split(
        tpl,
        'activation_split_dims_mapping',
        out=outputs.out,
        extend_step_out=outputs.extend_step_out,
      ),
    )
    if self.has_bias:
      # As the outputs that it is added to, so that it need not be moved.
      mapping = weights if outputs.out is None else outputs.out
      self._create_bias(None if mapping is None else mapping[-1:])
    self.create_child('activation', self.activation_tpl)

  def _create_bias(self, mapping):
    tpl = self.bias_tpl
    self.create_child(
      'bias',
      tpl,
      **agreed(
        'FeedForward.bias_tpl',
        tpl,
        dims=self.output_dims,
        bias_init=self.bias_init,
      ),
      **split(tpl, 'weight_split_dims_mapping', wt=mapping),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., I] to [..., O]."""
    projected = self.linear(inputs)
    if self.checkpoint_str is not None:
      projected = checkpoint_name(projected, self.checkpoint_str)
    if self.has_bias:
      projected = self.bias(projected)
    return self.activation(projected)


class MLPBlock(base_layer.BaseLayer):
  """Multi-layer perceptron: feed-forward layers from I over hidden dims to O.

  Attributes:
    num_layers: number of feed-forward layers.
    hidden_dims: output dims of all layers but the last.
    activate_final: whether the last layer keeps its activation.
    ff_tpl: the feed-forward layers; its `input_dims` and `output_dims` are I
      and O.
  """

  ActivationSharding = OutputSharding

  num_layers: int = 3
  hidden_dims: int = 128
  activate_final: bool = True
  ff_tpl: Config = sub_config_field(FeedForward)

  def setup(self):
    errors.check_least(self, 1, 'num_layers')
    tpl = self.ff_tpl
    # One clone per layer, so that they do not share weights.
    layers = [
      tpl.clone().set(input_dims=self.hidden_dims, output_dims=self.hidden_dims)
      for _ in range(self.num_layers)
    ]
    layers[0].input_dims = tpl.input_dims
    layers[-1].output_dims = tpl.output_dims
    if not self.activate_final:
      layers[-1].activation_tpl = activations.Identity.config()
    outputs = self.activation_split_dims_mapping
    self.create_children(
      'mlp_layers',
      layers,
      **split(
        tpl, 'weight_split_dims_mapping', wt=self.weight_split_dims_mapping.wt
      ),
      **split(
        tpl,
        'activation_split_dims_mapping',
        out=outputs.out,
        extend_step_out=outputs.extend_step_out,
      ),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., I] to [..., O]."""
    for layer in self.mlp_layers:
      inputs = layer(inputs)
    return inputs
