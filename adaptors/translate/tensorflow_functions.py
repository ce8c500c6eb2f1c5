"""JAX counterparts of TensorFlow functions, with the same arguments."""

import functools

import jax
import jax.numpy as jnp

from adaptors.translate.functions import translates_fn
from pax_compat.layers.detection import point_pooling
from pax_compat.layers.graph import containers

# JAX functions with the same arguments in the same order.
_SAME = {
  'builtins.sum': sum,
  'operator.add': jnp.add,
  'operator.mul': jnp.multiply,
  'operator.neg': jnp.negative,
  'operator.sub': jnp.subtract,
  'operator.truediv': jnp.divide,
  'tf.abs': jnp.abs,
  'tf.add': jnp.add,
  'tf.add_n': sum,
  'tf.cos': jnp.cos,
  'tf.einsum': jnp.einsum,
  'tf.exp': jnp.exp,
  'tf.math.divide': jnp.divide,
  'tf.math.erf': jax.lax.erf,
  'tf.math.log': jnp.log,
  'tf.math.rsqrt': jax.lax.rsqrt,
  'tf.maximum': jnp.maximum,
  'tf.minimum': jnp.minimum,
  'tf.multiply': jnp.multiply,
  'tf.negative': jnp.negative,
  'tf.nn.elu': jax.nn.elu,
  'tf.nn.relu': jax.nn.relu,
  'tf.nn.relu6': jax.nn.relu6,
  'tf.nn.selu': jax.nn.selu,
  'tf.nn.softplus': jax.nn.softplus,
  'tf.nn.softsign': jax.nn.soft_sign,
  'tf.ones_like': jnp.ones_like,
  'tf.pow': jnp.power,
  'tf.sigmoid': jax.nn.sigmoid,
  'tf.sin': jnp.sin,
  'tf.sqrt': jnp.sqrt,
  'tf.square': jnp.square,
  'tf.stop_gradient': jax.lax.stop_gradient,
  'tf.subtract': jnp.subtract,
  'tf.tanh': jnp.tanh,
  'tf.zeros_like': jnp.zeros_like,
}
for _name, _fn in _SAME.items():
  translates_fn(_name)(_fn)

# Merges the branches of `lingvo.core.builder.Base._Par`.
translates_fn('lingvo.core.builder.Base._Par.<locals>.ConcatTuples')(
  containers.flat
)


@translates_fn('tf.identity')
def identity(input):  # noqa: A002 (TensorFlow's name)
  return input


@translates_fn('tf.cast')
def cast(x, dtype):
  return x.astype(dtype)


@translates_fn('tf.nn.silu', 'tf.nn.swish')
def swish(features, beta=1.0):
  return features * jax.nn.sigmoid(beta * features)


@translates_fn('tf.nn.gelu')
def gelu(features, approximate=False):
  return jax.nn.gelu(features, approximate=approximate)


@translates_fn('tf.nn.leaky_relu')
def leaky_relu(features, alpha=0.2):
  return jax.nn.leaky_relu(features, alpha)


@translates_fn('tf.nn.softmax')
def softmax(logits, axis=-1):
  return jax.nn.softmax(logits, axis)


@translates_fn('tf.nn.log_softmax')
def log_softmax(logits, axis=-1):
  return jax.nn.log_softmax(logits, axis)


@translates_fn('tf.matmul')
def matmul(a, b, transpose_a=False, transpose_b=False):
  a = jnp.swapaxes(a, -1, -2) if transpose_a else a
  b = jnp.swapaxes(b, -1, -2) if transpose_b else b
  return jnp.matmul(a, b)


@translates_fn('tf.concat')
def concat(values, axis):
  return jnp.concatenate(values, axis)


@translates_fn('tf.stack')
def stack(values, axis=0):
  return jnp.stack(values, axis)


@translates_fn('tf.split')
def split(value, num_or_size_splits, axis=0):
  if isinstance(num_or_size_splits, int):
    return tuple(jnp.split(value, num_or_size_splits, axis))
  *ends, _ = (
    sum(num_or_size_splits[: i + 1]) for i in range(len(num_or_size_splits))
  )
  return tuple(jnp.split(value, ends, axis))


@translates_fn('tf.expand_dims')
def expand_dims(input, axis):  # noqa: A002 (TensorFlow's name)
  return jnp.expand_dims(input, axis)


@translates_fn('tf.squeeze')
def squeeze(input, axis=None):  # noqa: A002 (TensorFlow's name)
  return jnp.squeeze(input, tuple(axis) if isinstance(axis, list) else axis)


@translates_fn('tf.reshape')
def reshape(tensor, shape):
  return jnp.reshape(tensor, shape)


@translates_fn('tf.transpose')
def transpose(a, perm=None):
  return jnp.transpose(a, perm)


def _reduced(reduce, input_tensor, axis=None, keepdims=False):
  axis = tuple(axis) if isinstance(axis, list) else axis
  return reduce(input_tensor, axis=axis, keepdims=bool(keepdims))


def _max(x, axis=None, keepdims=False):
  if isinstance(axis, int) and not keepdims:
    return point_pooling.maximum(x, axis)  # Its gradient is always a number.
  return jnp.max(x, axis=axis, keepdims=keepdims)


for _name, _fn in {
  'tf.reduce_max': _max,
  'tf.reduce_mean': jnp.mean,
  'tf.reduce_min': jnp.min,
  'tf.reduce_prod': jnp.prod,
  'tf.reduce_sum': jnp.sum,
}.items():
  translates_fn(_name)(functools.partial(_reduced, _fn))
