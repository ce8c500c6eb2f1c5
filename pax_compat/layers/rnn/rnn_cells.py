"""Recurrent cells: one step of a recurrent layer.

Shapes: B batch, I input nodes, O output nodes, H hidden nodes (size of the cell
state), G gates, "..." further leading axes, such as time.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED
from pax_compat.nested_map import NestedMap

# (name of a weight [K, N], x [B, K]) -> x times the weight, [B, N].
Product = Callable[[str, jax.Array], jax.Array]


class BaseRnnCell(base_layer.BaseLayer):
  """Base of the recurrent cells.

  A cell maps a state and the inputs of a step to the next state. A state is a
  `NestedMap` of arrays [B, ...], the same ones at each step.

  Attributes:
    inputs_arity: number of arrays in `inputs.act`.
    num_input_nodes: I, the sum of the last dimensions of those arrays.
    num_output_nodes: O.
    reset_cell_state: whether the state is reset where `inputs.reset_mask` is 0,
      for packed examples.
  """

  inputs_arity: int = 1
  num_input_nodes: int = REQUIRED
  num_output_nodes: int = REQUIRED
  reset_cell_state: bool = False

  def init_states(self, batch_size: int) -> NestedMap:
    """Returns the state before the first step."""
    raise NotImplementedError(type(self).__name__)

  def get_output(self, state: NestedMap) -> jax.Array:
    """Returns the output [B, O] of a state."""
    raise NotImplementedError(type(self).__name__)

  def __call__(self, state0: NestedMap, inputs: NestedMap) -> NestedMap:
    """Computes a step; returns the state after the step.

    Args:
      state0: the state before the step.
      inputs: `act`, [B, I] or a list of `inputs_arity` arrays; `padding`
        [B, 1], 1 where the state is carried over unchanged; and optionally
        `reset_mask` [B, 1], 0 where the state is reset before the step.
    """
    raise NotImplementedError(type(self).__name__)

  def joined(self, act: jax.Array | Sequence[jax.Array]) -> jax.Array:
    """Concatenates the inputs `act` to one array [..., I].

    Raises:
      UserError: their number is not `inputs_arity`, or their dimensions do not
        sum to I.
    """
    arrays = list(act) if isinstance(act, list | tuple) else [act]
    dims = sum(x.shape[-1] for x in arrays)
    if len(arrays) != self.inputs_arity or dims != self.num_input_nodes:
      raise errors.UserError(
        f'{type(self).__name__}: inputs.act has {len(arrays)} array(s) of'
        f' {dims} dims together; expected {self.inputs_arity} (inputs_arity) of'
        f' {self.num_input_nodes} (num_input_nodes)'
      )
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis=-1)


class LstmCellSimple(BaseRnnCell):
  """An LSTM (long short-term memory) with all gates in one matrix product.

  Its state is `m` [B, O], the output, and `c` [B, H], the cell. Weights: `wm`
  [I + O, G * H], with the columns of the candidate, the input gate, the forget
  gate and the output gate; `b` [G * H]; and with `num_hidden_nodes` `w_proj`
  [H, O].

  Attributes:
    num_hidden_nodes: H, if the output is a projection of the cell
      (https://arxiv.org/abs/1402.1128); 0 for no projection, and H is O.
    cell_value_cap: the cell is clipped to [-cap, cap]; None does not clip.
    forget_gate_bias: added to the forget gate's bias.
    output_nonlinearity: whether the output gate multiplies the cell's tanh
      instead of the cell.
    zo_prob: zoneout probability (https://arxiv.org/abs/1606.01305): that an
      element of the state keeps its old value; in evaluation the state is the
      expectation.
    bias_init: initializer of the bias.
    enable_lstm_bias: whether there is a bias `b`.
    couple_input_forget_gates: whether the input gate is 1 minus the forget
      gate; the other three gates keep their order.
  """

  num_hidden_nodes: int = 0
  cell_value_cap: float | None = 10.0
  forget_gate_bias: float = 0.0
  output_nonlinearity: bool = True
  zo_prob: float = 0.0
  bias_init: WeightInit = WeightInit.Constant(0.0)
  enable_lstm_bias: bool = True
  couple_input_forget_gates: bool = False

  @property
  def num_gates(self) -> int:
    """G."""
    return 3 if self.couple_input_forget_gates else 4

  @property
  def output_size(self) -> int:
    """O."""
    return self.num_output_nodes

  @property
  def hidden_size(self) -> int:
    """H."""
    return self.num_hidden_nodes or self.num_output_nodes

  def setup(self):
    if not 0 <= self.zo_prob < 1:
      raise errors.wrong_field(self, 'zo_prob', '0 or more, and less than 1')
    columns = self.num_gates * self.hidden_size
    self.create_variable(
      'wm',
      WeightHParams(
        [self.num_input_nodes + self.output_size, columns],
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      ),
    )
    if self.num_hidden_nodes:
      self.create_variable(
        'w_proj', WeightHParams([self.hidden_size, self.output_size])
      )
    if self.enable_lstm_bias:
      self.create_variable('b', WeightHParams([columns], init=self.bias_init))

  def init_states(self, batch_size: int) -> NestedMap:
    """Returns the state before the first step, all zeros."""
    return NestedMap(
      m=jnp.zeros([batch_size, self.output_size], self.compute_dtype),
      c=jnp.zeros([batch_size, self.hidden_size], self.compute_dtype),
    )

  def get_output(self, state: NestedMap) -> jax.Array:
    """Returns the output [B, O] of a state."""
    return state.m

  def __call__(self, state0: NestedMap, inputs: NestedMap) -> NestedMap:
    """Computes a step; see `BaseRnnCell`."""
    projected = self.project_input(inputs)
    return self.fprop_with_projected_inputs(
      state0, NestedMap({**inputs, 'proj_inputs': projected})
    )

  def project_input(self, inputs: NestedMap) -> jax.Array:
    """Returns the projected inputs, the summand [..., G * H] of the gates.

    Args:
      inputs: `act`, [..., I] or a list: of one step, or of all steps.
    """
    act = self.joined(inputs.act)
    weight = self.theta.wm[: self.num_input_nodes]
    # As a matrix: on a CPU the weight's gradient takes 1.5 times as long with
    # several contracted axes.
    projected = act.reshape([-1, act.shape[-1]]) @ weight
    return projected.reshape([*act.shape[:-1], -1])

  def fprop_with_projected_inputs(
    self, state0: NestedMap, inputs: NestedMap
  ) -> NestedMap:
    """Computes a step, like `__call__`; returns the state after the step.

    Args:
      state0: the state before the step.
      inputs: `proj_inputs` [B, G * H], from `project_input`, instead of `act`.
    """
    weights = self.recurrent_weights()
    draws = self.zoneout_draws(inputs.padding.shape[:-1])

    def product(name, x):
      result = x @ weights[name]
      return result + inputs.proj_inputs if name == 'wm' else result

    return self.step(
      product, self.gate_weights(), state0, NestedMap({**inputs, **draws})
    )

  def recurrent_weights(self) -> dict[str, jax.Array]:
    """Returns the matrices that `step` multiplies by, by name."""
    weights = {'wm': self.theta.wm[self.num_input_nodes :]}
    if self.num_hidden_nodes:
      weights['w_proj'] = self.theta.w_proj
    return weights

  def gate_weights(self) -> NestedMap:
    """Returns the other weights of `step`."""
    return NestedMap(b=self.bias())

  def bias(self) -> jax.Array:
    """Returns the bias of the gates, [G, H]."""
    shape = [self.num_gates, self.hidden_size]
    if self.enable_lstm_bias:
      bias = self.theta.b.reshape(shape)
    else:
      bias = jnp.zeros(shape, self.compute_dtype)
    # The forget gate is last but one, with both three and four gates.
    return bias.at[-2].add(self.forget_gate_bias)

  def zoneout_draws(self, shape: Sequence[int]) -> dict[str, jax.Array]:
    """Draws which elements of states zoneout keeps.

    Args:
      shape: [..., B], of steps.

    Returns:
      `stay_m` [..., B, O] and `stay_c` [..., B, H], bool; empty without zoneout
      and in evaluation.
    """
    if not self.zo_prob or self.do_eval:
      return {}
    sizes = {'stay_m': self.output_size, 'stay_c': self.hidden_size}
    return {
      name: jax.random.bernoulli(
        self.next_prng_key(), self.zo_prob, [*shape, size]
      )
      for name, size in sizes.items()
    }

  def step(
    self,
    product: Product,
    weights: NestedMap,
    state0: NestedMap,
    inputs: NestedMap,
  ) -> NestedMap:
    """Computes a step with the given weights; returns the state after the step.

    Args:
      product: multiplies by one of `recurrent_weights`, by its name; for `wm`
        it adds the projected inputs.
      weights: from `gate_weights`.
      state0: the state before the step.
      inputs: `padding` [B, 1], optionally `reset_mask` [B, 1], and
        `zoneout_draws`.
    """
    if self.reset_cell_state and 'reset_mask' in inputs:
      keeps = inputs.reset_mask > 0
      state0 = jax.tree.map(lambda x: jnp.where(keeps, x, 0), state0)
    x = product('wm', state0.m)
    gates = x.reshape([*x.shape[:-1], self.num_gates, self.hidden_size])
    gates = self.preprocess_gates(weights, gates)
    new_c = self._new_cell(state0.c, gates)
    new_m = jax.nn.sigmoid(gates[..., -1, :]) * (
      jnp.tanh(new_c) if self.output_nonlinearity else new_c
    )
    if self.num_hidden_nodes:
      new_m = product('w_proj', new_m)
    return NestedMap(
      m=self._next(state0.m, new_m, inputs.padding, inputs.get('stay_m')),
      c=self._next(state0.c, new_c, inputs.padding, inputs.get('stay_c')),
    )

  def preprocess_gates(self, weights: NestedMap, gates: jax.Array) -> jax.Array:
    """Returns the arguments of the gates' nonlinearities, [B, G, H]."""
    return gates + weights.b

  def _new_cell(self, c: jax.Array, gates: jax.Array) -> jax.Array:
    candidate = jnp.tanh(gates[..., 0, :])
    forget = jax.nn.sigmoid(gates[..., -2, :])
    if self.couple_input_forget_gates:
      new_c = forget * c + (candidate - candidate * forget)
    else:
      new_c = forget * c + jax.nn.sigmoid(gates[..., 1, :]) * candidate
    if self.cell_value_cap is not None:
      new_c = jnp.clip(new_c, -self.cell_value_cap, self.cell_value_cap)
    return new_c

  def _next(
    self,
    old: jax.Array,
    new: jax.Array,
    padding: jax.Array,
    stays: jax.Array | None,
  ) -> jax.Array:
    """Returns the next output [B, O] or cell [B, H]."""
    padded = padding > 0
    if stays is not None:
      return jnp.where(padded | stays, old, new)
    if self.zo_prob:
      new = self.zo_prob * old + (1 - self.zo_prob) * new
    return jnp.where(padded, old, new).astype(old.dtype)


class LayerNormalizedLstmCellSimple(LstmCellSimple):
  """An LSTM with layer normalisation of each gate over its H nodes.

  See https://arxiv.org/abs/1607.06450. It adds a weight `ln_scale` [G * H].

  Attributes:
    layer_norm_epsilon: added to the variance.
  """

  layer_norm_epsilon: float = 1e-8

  def setup(self):
    super().setup()
    self.create_variable(
      'ln_scale',
      WeightHParams(
        [self.num_gates * self.hidden_size], init=WeightInit.Constant(1.0)
      ),
    )

  def gate_weights(self) -> NestedMap:
    """Returns the weights of `step` other than the matrices."""
    scale = self.theta.ln_scale.reshape([self.num_gates, self.hidden_size])
    return NestedMap(b=self.bias(), ln_scale=scale)

  def preprocess_gates(self, weights: NestedMap, gates: jax.Array) -> jax.Array:
    """Returns the arguments of the gates' nonlinearities, [B, G, H]."""
    centred = gates - jnp.mean(gates, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(variance + self.layer_norm_epsilon)
    return normal * weights.ln_scale + weights.b


class CifgLstmCellSimple(LstmCellSimple):
  """An LSTM with coupled input and forget gates.

  Attributes:
    couple_input_forget_gates: as in `LstmCellSimple`; here True by default.
  """

  couple_input_forget_gates: bool = True
