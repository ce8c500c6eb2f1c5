"""State space models: S4D (https://arxiv.org/abs/2206.11893) and S5.

Shapes: B batch, L time, D channels, N states.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED
from pax_compat.layer_core.decode_states import StateFn

# Name of the state between decoding steps.
_STATE = 'ssm_state'


def _hippo_eigenvalues(states: int, kind: str) -> np.ndarray:
  """Returns the eigenvalues [N] of a HiPPO matrix, https://arxiv.org/abs/2111.00396.

  The matrix is made normal by an update of rank 1.

  Args:
    states: N.
    kind: 'legs' (scaled Legendre) or 'lagt' (translated Laguerre).
  """
  n = np.arange(states)
  if kind == 'legs':
    root = np.sqrt(1 + 2 * n)
    matrix = np.tril(root[:, None] * root) - np.diag(n)
    update = np.sqrt(n + 0.5)
  else:
    matrix = np.tril(np.ones([states, states]))
    update = np.sqrt(0.5) * np.ones(states)
  normal = update[:, None] * update - matrix
  imaginary = np.linalg.eigvalsh(normal * -1j)
  if kind == 'lagt':
    imaginary = imaginary * states
  real = np.full(states, np.mean(np.diagonal(normal)))
  return (real + 1j * imaginary).astype(np.complex64)


def _linear_eigenvalues(states: int) -> np.ndarray:
  """Returns -1/2 + i x, [N], with x in equal steps."""
  if states < 2:
    raise errors.UserError(
      f'SSM.nheads is {states}; expected 2 or more, or a hippo_type that ends'
      " in 'legs' or 'lagt'"
    )
  start, step = -np.pi / 2 * (states - 1), np.pi / states * (states - 1)
  stop = np.pi / 2 / states * (states - 1) ** 2
  imaginary = np.arange(start, stop, step)
  if len(imaginary) != states:
    raise errors.UserError(
      f'SSM.nheads is {states}, but {len(imaginary)} eigenvalues fit; expected'
      " a hippo_type that ends in 'legs' or 'lagt'"
    )
  return (-0.5 + 1j * imaginary).astype(np.complex64)


def _convolved(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
  """Returns the causal convolution of [B, L, D] with a longer kernel."""
  length = inputs.shape[1]
  if kernel.shape[0] < length:
    raise errors.UserError(
      f'SSM.l_max is {kernel.shape[0]}, but a sequence has {length} steps'
    )
  size = 2 * length
  of_inputs = jnp.fft.rfft(inputs.astype(jnp.float32), n=size, axis=1)
  of_kernel = jnp.fft.rfft(kernel[:length].astype(jnp.float32), n=size, axis=0)
  return jnp.fft.irfft(of_inputs * of_kernel, axis=1)[:, :length]


class SSM(base_layer.BaseLayer):
  """S4D: N states for each channel, computed as a convolution.

  The eigenvalues and the step size are not trained. The output includes a
  direct path, `D` times the input.

  Attributes:
    nheads: N.
    dim: D.
    l_max: maximum of L.
    decode_num_samples: samples for each row in decoding.
    step_size: step of the discretization.
    hippo_type: its ending chooses the eigenvalues: 'legs', 'lagt', or anything
      else for equal steps.
  """

  nheads: int = REQUIRED
  dim: int = REQUIRED
  l_max: int = 0
  decode_num_samples: int = 0
  step_size: float = 0.01
  hippo_type: str = 'ss4d-1d'

  def setup(self):
    self._create('D', [1, self.dim], WeightInit.Constant(1.0))
    init = WeightInit.Gaussian(0.5**0.5)
    self._create('C_re', [self.nheads, self.dim], init)
    self._create('C_im', [self.nheads, self.dim], init)

  def _create(self, name: str, shape: list[int], init: WeightInit):
    split = self.weight_split_dims_mapping.wt
    if split is not None and len(split) != len(shape):
      split = split[-len(shape) :]
    weight = WeightHParams(shape, init, tensor_split_dims_mapping=split)
    self.create_variable(name, weight)

  def _complex(self, name: str) -> jax.Array:
    """Returns a weight from its real and imaginary parts."""
    return self.get_theta(f'{name}_re') + 1j * self.get_theta(f'{name}_im')

  def _eigenvalues(self) -> np.ndarray:
    for kind in ('legs', 'lagt'):
      if self.hippo_type.endswith(kind):
        return _hippo_eigenvalues(self.nheads, kind)
    return _linear_eigenvalues(self.nheads)

  def _discretized(self) -> tuple[jax.Array, jax.Array]:
    """Returns the factors [N] of states and inputs in a step."""
    eigenvalues = jnp.asarray(self._eigenvalues())
    factor = jnp.exp(self.step_size * eigenvalues)
    return factor, (factor - 1) / eigenvalues

  def _kernel(self) -> jax.Array:
    """Returns the kernel [L, D] of the convolution."""
    eigenvalues = jnp.asarray(self._eigenvalues())
    _, of_inputs = self._discretized()
    times = self.step_size * jnp.arange(self.l_max)
    powers = jnp.exp(times[:, None] * eigenvalues)
    return jnp.real(powers @ (self._complex('C') * of_inputs[:, None]))

  def init_states(self, batch_size: int):
    """Sets the state [batch_size, N, D] to zeros."""
    shape = (batch_size, self.nheads, self.dim)
    self.update_decode_state(_STATE, jnp.zeros(shape, jnp.complex64))

  def transform_decode_state(self, transform_fn: StateFn):
    """Changes the state, which has no positions."""
    self._transform_own_states(transform_fn)

  def _decode_state(self, batch: int) -> jax.Array:
    if not self.has_variable(base_layer.DECODE_CACHE, _STATE):
      self.init_states(batch)
    state = self.get_decode_state(_STATE)
    if state.shape[0] != batch:
      raise errors.UserError(
        f'{type(self).__name__}.extend_step: inputs have {batch} rows, the'
        f' state {state.shape[0]}'
      )
    return state

  def extend_step(self, inputs: jax.Array) -> jax.Array:
    """Returns the outputs [B, D] of a step with inputs [B, D]."""
    state = self._decode_state(inputs.shape[0])
    factor, of_inputs = self._discretized()
    state = factor[:, None] * state + of_inputs[:, None] * inputs[:, None]
    self.update_decode_state(_STATE, state)
    outputs = jnp.sum(self._complex('C') * state, axis=1)
    return jnp.real(outputs) + self.theta.D * inputs

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns the outputs [B, L, D] of inputs [B, L, D].

    Raises:
      UserError: L is larger than `l_max`.
    """
    self.init_states(inputs.shape[0] * self.decode_num_samples)
    return _convolved(inputs, self._kernel()) + self.theta.D * inputs


class S5(SSM):
  """S5: N states of all channels together, https://arxiv.org/abs/2208.04933.

  They are computed by an associative scan. As in Pax, the weights `B_re` and
  `B_im` exist but are not used: the inputs' matrix is ones.
  """

  def setup(self):
    states, dims = self.nheads, self.dim
    self._create('D', [dims], WeightInit.Constant(1.0))
    init = WeightInit.Gaussian(dims**-0.5)
    for name in ('B_re', 'B_im'):
      self._create(name, [states, dims], init)
    init = WeightInit.Gaussian(states**-0.5)
    for name in ('C_re', 'C_im'):
      self._create(name, [dims, states], init)

  def init_states(self, batch_size: int):
    """Sets the state [batch_size, N] to zeros."""
    shape = (batch_size, self.nheads)
    self.update_decode_state(_STATE, jnp.zeros(shape, jnp.complex64))

  def _driven(self, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the states' factors [N], and what inputs add to them."""
    factor, of_inputs = self._discretized()
    return factor, jnp.sum(inputs, -1, keepdims=True) * of_inputs

  def extend_step(self, inputs: jax.Array) -> jax.Array:
    """Returns the outputs [B, D] of a step with inputs [B, D]."""
    state = self._decode_state(inputs.shape[0])
    factor, added = self._driven(inputs)
    state = factor * state + added
    self.update_decode_state(_STATE, state)
    return self._outputs(state, inputs)

  def _outputs(self, states, inputs) -> jax.Array:
    return jnp.real(states @ self._complex('C').T) + self.theta.D * inputs

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns the outputs [B, L, D] of inputs [B, L, D]."""
    self.init_states(inputs.shape[0] * self.decode_num_samples)
    factor, added = self._driven(inputs)
    factors = jnp.broadcast_to(factor, (1, inputs.shape[1], self.nheads))

    def joined(first, second):
      return second[0] * first[0], second[0] * first[1] + second[1]

    _, states = jax.lax.associative_scan(joined, (factors, added), axis=1)
    return self._outputs(states, inputs)
