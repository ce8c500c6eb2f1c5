"""Loads the state of an optimizer from a checkpoint.

Names in the state are paths with slashes, such as
`opt_state/optimizer/0/1/mu/lm/softmax/w`.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import fiddle as fdl
import jax

from pax_compat import config as config_lib
from pax_compat import errors, optimizers
from pax_compat.tasks import loading_rules
from pax_compat.warm_start import pax_shampoo, pax_source, sources

_MAX_LISTED = 8
_AVERAGE = 'opt_state/average/ema/'
# Praxis's own Adam keeps bias-corrected moments, under these names.
_CORRECTED = {'mu': ('m', 'beta1'), 'nu': ('v', 'beta2')}
# Other slots of Pax that have another name there.
_RENAMED = {'start': 'pretrain_vars', 'acc_grads': 'accumulated_update'}
# What accumulates gradients has the state of another optimizer, with counts of
# its own: here in `inner_opt_state`, in Pax in `base_state`.
_INNER, _INNER_IN_PAX = '/inner_opt_state/', '/base_state/'
_COUNTS = ('count', 'mini_step', 'gradient_step')


@dataclasses.dataclass(frozen=True)
class Loading:
  """How to load an optimizer's state.

  Attributes:
    requests: the array of the checkpoint for each leaf, by its path.
    decays: decay of a bias-corrected moment that is loaded, by path.
    counts: paths of the leaves that count steps: alike, but for those of an
      optimizer whose gradients are accumulated.
    assemblies: leaves that are made of parts of arrays, by path.
  """

  requests: dict[str, sources.Request]
  decays: dict[str, float]
  counts: tuple[str, ...]
  assemblies: dict[str, pax_shampoo.Assembly]


def plan(
  source: sources.Source,
  wanted: Mapping[str, jax.ShapeDtypeStruct],
  learner: config_lib.Config,
) -> Loading:
  """Returns how to load all of the state.

  Args:
    source: the checkpoint.
    wanted: the leaves of the state by path.
    learner: config of the learner.

  Raises:
    UserError: the checkpoint's optimizer is of another kind.
  """
  variables = {n.removeprefix('params/'): n for n in source.variables}
  requests, decays, counts, missing, assemblies = {}, {}, [], [], {}
  shampoo = _shampoo(source, learner)
  for path, like in wanted.items():
    array, decay = path if path in source.opt_states else None, None
    if array is None:
      array, decay = _of_pax(path, like, source, variables, learner)
    if array is None and shampoo is not None:
      assembly = shampoo.assembly(path, like)
      if assembly is not None:
        assemblies[path] = assembly
        continue
    if array is None:
      missing.append(path)
      continue
    requests[path] = sources.Request(array, like)
    if decay is not None:
      decays[path] = decay
    if re.search(r'(^|/)count$', path):
      counts.append(path)
  if missing or not requests:
    listed = ', '.join(missing[:_MAX_LISTED])
    more = len(missing) - _MAX_LISTED
    raise errors.UserError(
      f'{loading_rules.FIELD}: load_opt_states, and {source.path} lacks parts'
      f' of the state of this optimizer: {listed or "the state is missing"}'
      + (f' and {more} more' if more > 0 else '')
      + '; expected the same optimizer, or load_opt_states=False'
    )
  sources.check_fits(source, requests, 'expected load_opt_states=False')
  return Loading(requests, decays, tuple(counts), assemblies)


def read(source: sources.Source, loading: Loading) -> dict[str, jax.Array]:
  """Returns the leaves by path."""
  found = source.read(loading.requests)
  found |= {path: one.read() for path, one in loading.assemblies.items()}
  if not loading.decays:
    return found
  # Praxis corrects each average by 1 - decay**n, Optax when it is used.
  for path, decay in loading.decays.items():
    count = max(
      int(jax.device_get(found[one]))
      for one in loading.counts
      if (_INNER in one) == (_INNER in path)
    )
    found[path] = _scaled(found[path], 1.0 - decay**count)
  return found


def _shampoo(
  source: sources.Source, learner: config_lib.Config
) -> pax_shampoo.ShampooState | None:
  """Returns what Pax kept of a learner's Shampoo, if it has one."""
  optimizer = pax_shampoo.optimizer_of(learner)
  if optimizer is None or not isinstance(source, pax_source.PaxSource):
    return None
  return pax_shampoo.ShampooState(source, optimizer)


def _of_pax(
  path: str,
  like: jax.ShapeDtypeStruct,
  source: sources.Source,
  variables: Mapping[str, str],
  learner: config_lib.Config,
) -> tuple[str | None, float | None]:
  """Returns Pax's array for a leaf, and the decay of a corrected moment."""
  if path.startswith(_AVERAGE):
    return source.averages.get(f'params/{path.removeprefix(_AVERAGE)}'), None
  if path.rpartition('/')[2] in _COUNTS:
    return _count(path, source, like), None
  weight = sources.longest_suffix(path, variables)
  if weight is None:
    return None, None
  slot = path.removesuffix(f'/{weight}').rpartition('/')[2]
  name = variables[weight]
  if (slot, name) in source.slots:
    return source.slots[slot, name], None
  if (_RENAMED.get(slot), name) in source.slots and not _has_means(learner):
    return source.slots[_RENAMED[slot], name], None
  if slot in _CORRECTED:
    theirs, field = _CORRECTED[slot]
    optimizer = learner.optimizer
    if _INNER in path:
      optimizer = optimizer.optimizer_tpl
    fields = config_lib.field_values(optimizer)
    if (theirs, name) in source.slots and field in fields:
      # Lion's average, of the same name, is not corrected.
      is_corrected = issubclass(fdl.get_callable(optimizer), optimizers.Adam)
      decay = float(fields[field]) if is_corrected else None
      return source.slots[theirs, name], decay
  return None, None


def _has_means(learner: config_lib.Config) -> bool:
  """Whether means are accumulated; Pax accumulates sums."""
  fields = config_lib.field_values(learner.optimizer)
  return bool(fields.get('collects_means', False))


def _count(
  path: str, source: sources.Source, like: jax.ShapeDtypeStruct
) -> str | None:
  """Returns one of Pax's counts of steps that are like that of a leaf."""
  kind = path.rpartition('/')[2]
  is_inner = _INNER in path or kind == 'gradient_step'
  accumulators = {
    name.partition('/accumulated_update/')[0] + '/count'
    for (slot, _), name in source.slots.items()
    if slot == 'accumulated_update'
  }
  counts = [
    name
    for name in source.opt_states
    if name.endswith('/count')
    and source.arrays[name] == like.shape
    and (name in accumulators) == (kind == 'mini_step')
    and (_INNER_IN_PAX in name) == is_inner
  ]
  return counts[0] if counts else None


@jax.jit
def _scaled(x: jax.Array, factor: Any) -> jax.Array:
  return (x * factor).astype(x.dtype)
