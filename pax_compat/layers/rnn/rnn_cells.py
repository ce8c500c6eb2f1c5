"""Recurrent cells: what one step of a recurrent layer computes.

Shapes: B batch, I input nodes, O output nodes, H hidden nodes (the cell's own
size), G gates, "..." further axes in front, such as time.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED
from pax_compat.nested_map import NestedMap

# (name of a weight [K, N], x [B, K]) -> what is added up, [B, N].
Product = Callable[[str, jax.Array], jax.Array]


class BaseRnnCell(base_layer.BaseLayer):
  """Base of the recurrent cells.

  A cell maps a state and the inputs of a step to the next state. A state is a
  `NestedMap` of arrays [B, ...], the same ones at each step.

  Attributes:
    inputs_arity: how many arrays `inputs.act` has.
    num_input_nodes: I, the last dimensions of those arrays together.
    num_output_nodes: O.
    reset_cell_state: whether the state starts anew where `inputs.reset_mask` is
      0, for examples that are packed into one sequence.
  """

  inputs_arity: int = 1
  num_input_nodes: int = REQUIRED
  num_output_nodes: int = REQUIRED
  reset_cell_state: bool = False

  def init_states(self, batch_size: int) -> NestedMap:
    """Returns the state before the first step."""
    raise NotImplementedError(type(self).__name__)

  def get_output(self, state: NestedMap) -> jax.Array:
    """Returns the output [B, O] that is part of a state."""
    raise NotImplementedError(type(self).__name__)

  def __call__(self, state0: NestedMap, inputs: NestedMap) -> NestedMap:
    """Computes a step.

    Args:
      state0: the state before it.
      inputs: `act`, [B, I] or a list of `inputs_arity` arrays; `padding`
        [B, 1], 1 where the state stays as it is; and perhaps `reset_mask`
        [B, 1], 0 where the state starts anew before the step.

    Returns:
      The state after it.
    """
    raise NotImplementedError(type(self).__name__)

  def joined(self, act: jax.Array | Sequence[jax.Array]) -> jax.Array:
    """Returns the inputs `act` as one array [..., I].

    Raises:
      UserError: there are not as many as the cell has, or their dimensions are
        not I together.
    """
    parts = list(act) if isinstance(act, list | tuple) else [act]
    dims = sum(part.shape[-1] for part in parts)
    if len(parts) != self.inputs_arity or dims != self.num_input_nodes:
      raise errors.UserError(
        f'{type(self).__name__}: inputs.act has {len(parts)} array(s) of'
        f' {dims} dims together; expected {self.inputs_arity} (inputs_arity) of'
        f' {self.num_input_nodes} (num_input_nodes)'
      )
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


class LstmCellSimple(BaseRnnCell):
  """A long short-term memory with all gates in one product.

  Its state is `m` [B, O], the output, and `c` [B, H], the cell. Weights: `wm`
  [I + O, G * H], whose columns are those of the input, the input gate, the
  forget gate and the output gate; `b` [G * H]; and with `num_hidden_nodes`
  `w_proj` [H, O].

  Attributes:
    num_hidden_nodes: H, where the output is a projection of the cell
      (https://arxiv.org/abs/1402.1128); 0 for none, and then H is O.
    cell_value_cap: the cell is clipped to [-cap, cap]; None leaves it.
    forget_gate_bias: added to the forget gate's bias.
    output_nonlinearity: whether the output gate multiplies the cell's tanh
      instead of the cell.
    zo_prob: the probability that an element of the state stays as it was
      (zoneout, https://arxiv.org/abs/1606.01305); at evaluation the state is
      the mean of both.
    bias_init: the bias's first value.
    enable_lstm_bias: whether there is a bias `b`.
    couple_input_forget_gates: whether the input gate is 1 minus the forget
      gate, so that there are three gates; their order stays.
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
      raise errors.UserError(
        f'{type(self).__name__}.zo_prob is {self.zo_prob}; expected 0 or more,'
        ' and less than 1'
      )
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
    """Returns the output [B, O] that is part of a state."""
    return state.m

  def __call__(self, state0: NestedMap, inputs: NestedMap) -> NestedMap:
    """Computes a step; see `BaseRnnCell`."""
    projected = self.project_input(inputs)
    return self.fprop_with_projected_inputs(
      state0, NestedMap({**inputs, 'proj_inputs': projected})
    )

  def project_input(self, inputs: NestedMap) -> jax.Array:
    """Returns the part [..., G * H] of the gates that `inputs.act` makes.

    Args:
      inputs: `act`, [..., I] or a list: of a step, or of all at once.
    """
    act = self.joined(inputs.act)
    weight = self.theta.wm[: self.num_input_nodes]
    # As a matrix, for the sake of the gradient by the weight: a CPU takes half
    # as long again to contract several axes.
    projected = act.reshape([-1, act.shape[-1]]) @ weight
    return projected.reshape([*act.shape[:-1], -1])

  def fprop_with_projected_inputs(
    self, state0: NestedMap, inputs: NestedMap
  ) -> NestedMap:
    """Computes a step, like `__call__`.

    Args:
      state0: the state before it.
      inputs: `proj_inputs` [B, G * H], from `project_input`, instead of `act`.

    Returns:
      The state after it.
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
    """Returns the matrices that `step` multiplies with, by name."""
    weights = {'wm': self.theta.wm[self.num_input_nodes :]}
    if self.num_hidden_nodes:
      weights['w_proj'] = self.theta.w_proj
    return weights

  def gate_weights(self) -> NestedMap:
    """Returns the other weights that `step` needs."""
    return NestedMap(b=self.bias())

  def bias(self) -> jax.Array:
    """Returns what is added to the gates, [G, H]."""
    shape = [self.num_gates, self.hidden_size]
    if self.enable_lstm_bias:
      bias = self.theta.b.reshape(shape)
    else:
      bias = jnp.zeros(shape, self.compute_dtype)
    # The forget gate is the last but one, with three gates and with four.
    return bias.at[-2].add(self.forget_gate_bias)

  def zoneout_draws(self, shape: Sequence[int]) -> dict[str, jax.Array]:
    """Returns which elements of states stay as they were.

    Args:
      shape: [..., B], of steps.

    Returns:
      `stay_m` [..., B, O] and `stay_c` [..., B, H], bool; nothing where nothing
      is drawn.
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
    """Computes a step, from weights that are given.

    Args:
      product: multiplies with one of `recurrent_weights`, by its name; to that
        with `wm` it adds what `project_input` returns.
      weights: `gate_weights`.
      state0: the state before the step.
      inputs: `padding` [B, 1], perhaps `reset_mask` [B, 1], and
        `zoneout_draws`.

    Returns:
      The state after it.
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
    """Returns `gates` [B, G, H] as they go into the nonlinearities."""
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
    """Returns a part of the next state, [B, O] or [B, H]."""
    padded = padding > 0
    if stays is not None:
      return jnp.where(padded | stays, old, new)
    if self.zo_prob:
      new = self.zo_prob * old + (1 - self.zo_prob) * new
    return jnp.where(padded, old, new).astype(old.dtype)


class LayerNormalizedLstmCellSimple(LstmCellSimple):
  """An LSTM whose gates are normalised, each over its H nodes.

  https://arxiv.org/abs/1607.06450. It has a weight `ln_scale` [G * H] more.

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
    """Returns the weights besides the matrices that `step` needs."""
    scale = self.theta.ln_scale.reshape([self.num_gates, self.hidden_size])
    return NestedMap(b=self.bias(), ln_scale=scale)

  def preprocess_gates(self, weights: NestedMap, gates: jax.Array) -> jax.Array:
    """Returns `gates` [B, G, H] as they go into the nonlinearities."""
    centred = gates - jnp.mean(gates, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(variance + self.layer_norm_epsilon)
    return normal * weights.ln_scale + weights.b


class CifgLstmCellSimple(LstmCellSimple):
  """An LSTM with coupled input and forget gates.

  Attributes:
    couple_input_forget_gates: as in `LstmCellSimple`, but on.
  """

  couple_input_forget_gates: bool = True
