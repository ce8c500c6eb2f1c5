"""JAX counterparts of the functions in graphs of Lingvo's car tasks.

The graphs are made by `lingvo.tasks.car.builder_lib.ModelBuilderBase`. Their
values are NestedMaps of `points`, `features` and `padding`.

Shapes: P points, D features.
"""

import functools

import jax.numpy as jnp

from adaptors.translate.functions import translates_fn
from pax_compat.layers.detection import point_pooling
from pax_compat.layers.graph import containers
from pax_compat.nested_map import NestedMap

_BUILDER = 'lingvo.tasks.car.builder_lib.ModelBuilderBase'


def _local(method: str, name: str = '<lambda>'):
  """Registers the decorated function for a local function of a method."""
  return translates_fn(f'{_BUILDER}.{method}.<locals>.{name}')


_local('_Join', 'Join')(containers.flat)
_local('_Add')(jnp.add)
_local('_Multiply')(jnp.multiply)


@_local('_Par', '_Merge')
def par(outputs, *, fn):
  return tuple(fn(*each) for each in zip(*outputs, strict=False))


@_local('_ApplyFn')
def apply_fn(outputs, *, fn):
  return (fn(*outputs[0]),)


@_local('_Concat')
def concat(*xs):
  return jnp.concatenate(xs, axis=-1)


@_local('_BroadcastConcat', '_Merge')
def broadcast_concat(*xs):
  leading = jnp.broadcast_shapes(*(x.shape[:-1] for x in xs))
  spread = [jnp.broadcast_to(x, (*leading, x.shape[-1])) for x in xs]
  return jnp.concatenate(spread, axis=-1)


@_local('_Squeeze', '_SqueezeFn')
def squeeze(x, *, axis):
  return jnp.squeeze(x, axis)


@_local('_GetValue', 'GetValueFn')
def get_value(point_map, *, name, key, default):
  del name  # Of messages.
  return point_map.get(key, default)


@_local('_ParMap', '_MakeNestedMap')
def make_nested_map(*values, sorted_keys):
  return NestedMap(zip(sorted_keys, values, strict=True))


@_local('_SeqToKey', '_Merge')
def set_key(outputs, *, key):
  return (NestedMap({**outputs[0][0], key: outputs[1][0]}),)


@_local('_Decorators.ExpectsNestedMapTensor', '_ValidateFn')
def validate(point_map, *, expected_keys):
  """Returns its argument, if it has the keys."""
  missing = sorted(expected_keys - point_map.keys())
  if missing:
    raise ValueError(f'missing fields: {", ".join(missing)}')
  return point_map


@_local('_FeaturesFC')
def with_last_axis(x):
  return x[..., None]


@_local('_GINIntermediateLayer', '<lambda>[0]')
def scale(x, *, eps):
  return (1.0 + eps) * x


@_local('_GINIntermediateLayer', '<lambda>[1]')
def with_axis_of_points(x):
  return jnp.expand_dims(x, -2)


@_local('_PaddedMax', '_PaddedMaxFn')
def padded_max(point_map, *, nested_output):
  """Returns the maximum over points, or a NestedMap of it and its padding."""
  paddings = point_map.padding
  features = point_pooling.padded_max(point_map.features, paddings)
  if not nested_output:
    return features
  return NestedMap(features=features, padding=jnp.min(paddings, axis=-1))


def _pooled(pool, point_map):
  return pool(point_map.features, point_map.padding)


_local('_PaddedMean', '_PaddedMeanFn')(
  functools.partial(_pooled, point_pooling.padded_mean)
)
_local('_PaddedSum', '_PaddedSumFn')(
  functools.partial(_pooled, point_pooling.padded_sum)
)


# Of `lingvo.tasks.car.starnet.Builder.GINFeaturizer`: without the centers.
@translates_fn(
  'lingvo.tasks.car.starnet.Builder.GINFeaturizer.<locals>.<lambda>'
)
def without_centers(x):
  return x[..., 3:]
