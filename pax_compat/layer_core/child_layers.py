"""How a layer builds its children from templates.

One template object is one layer, wherever in a model it is used. A module of
flax that belongs to nobody yet, and is assigned to attributes of several
modules, is shared between them; so the first use of a template builds such a
module, and later uses get the same one.
"""

import contextvars
import dataclasses
import weakref
from typing import Any

import flax
import flax.linen as nn
import jax
from fiddle import daglish

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.config_core import context_values
from pax_compat.layer_core.weight_init import WeightInit

# Fields that children inherit from their parent unless their template sets
# them.
INHERITED = (
  'dtype',
  'fprop_dtype',
  'params_init',
  'skip_lp_regularization',
  'mesh_axis_names',
  'ici_mesh_shape',
  'dcn_mesh_shape',
  'contiguous_submeshes',
)

_SHARDINGS = {
  'WeightSharding': 'weight_split_dims_mapping',
  'ActivationSharding': 'activation_split_dims_mapping',
}

# No layer has this attribute; flax sets up a layer before it raises.
_NO_ATTRIBUTE = 'no layer has this attribute'

# Layers by their templates, for every model that is being traced.
_built: 'weakref.WeakKeyDictionary' = weakref.WeakKeyDictionary()

# Configs whose layers cannot be shared with layers outside, by model.
_apart: 'weakref.WeakKeyDictionary' = weakref.WeakKeyDictionary()

# Whether `adopt` runs, in this thread.
_adopts = contextvars.ContextVar('adopts', default=False)

# Whether `set_up` runs, in this thread.
_sets_up_all = contextvars.ContextVar('sets_up_all', default=False)


@dataclasses.dataclass(frozen=True)
class _Built:
  """A layer that was built.

  Attributes:
    tpl: its template; kept, so that no other object gets its id.
    where: path of its first use.
    fields: all its fields.
    child: the layer, not yet bound to a parent module.
  """

  tpl: config_lib.Config
  where: str
  fields: dict[str, Any]
  child: nn.Module


@dataclasses.dataclass(frozen=True)
class _Apart:
  """A config whose layer cannot be shared with layers outside another layer.

  Attributes:
    config: the config; kept, so that no other object gets its id.
    where: path of the layer that contains it.
    within: template of that layer.
  """

  config: config_lib.Config
  where: str
  within: config_lib.Config


def declare_shardings(cls: type):
  """Makes nested sharding classes the defaults of the sharding fields.

  Call it from `__init_subclass__`, before the class becomes a dataclass.
  """
  for nested, field in _SHARDINGS.items():
    if nested in cls.__dict__:
      cls.__annotations__ = {
        **cls.__dict__.get('__annotations__', {}),
        field: config_lib.Config,
      }
      setattr(cls, field, config_lib.sub_config_field(cls.__dict__[nested]))


# Values of fields that hold no layers.
_WITHOUT_LAYERS = (
  bool,
  int,
  float,
  str,
  type,
  type(None),
  config_lib.Config,
  WeightInit,
)


class PlainFields:
  """Sets fields of a layer that hold no layers without a search for layers.

  Flax searches the value of each field of each layer. Of a large model's start
  a third went into configs and numbers.
  """

  @nn.nowrap
  def _register_submodules(self, name: str, val: Any):
    if isinstance(val, _WITHOUT_LAYERS) or (
      # Flax makes lists tuples. A namedtuple may hold anything.
      type(val) is tuple and all(isinstance(x, _WITHOUT_LAYERS) for x in val)
    ):
      object.__setattr__(self, name, val)
    elif type(val) is dict and not val:
      object.__setattr__(self, name, flax.core.FrozenDict())
    else:
      super()._register_submodules(name, val)


def build_child(
  parent: nn.Module, name: str, tpl: config_lib.Config, fields: dict[str, Any]
) -> nn.Module:
  """Returns the layer of a template, to be assigned to an attribute.

  What happens when a parent's `setup` calls `create_child('ff', tpl)`:

  1. `parent.scope` is flax's handle on the variables of the parent, and
     `scope.root` that of the outermost module. There is one root for each call
     of `init` or `apply`. So the built layers are stored by root, and are
     dropped with it: two calls never share a layer. A module that flax
     transforms, for instance by `nn.scan`, has a separate root; see
     `keep_apart`.
  2. If the same template was built under this root before, that layer is
     returned again; but see `_is_repeated`.
  3. Else `tpl.build(fields)` builds the child with `parent=None`. Flax would
     otherwise make the module whose `setup` runs its parent, and a second
     module could not adopt it. The child has no scope and no name yet.
  4. `create_child` assigns the returned layer: `parent.ff = child`. In `setup`,
     flax's `Module.__setattr__` then adopts it. A module without a parent is
     cloned, and the clone gets the parent, the name `ff`, and a scope within
     the parent's. Flax remembers the clone by the id of the original, under
     the same root. So a second module that is assigned the same child gets the
     same clone: its weights are shared, under the name of the first use.
  5. The clone's own `setup` has not run. Flax calls it when a method of the
     clone is called, or when an attribute is read that the clone does not have
     (`Module.__getattr__`).

  A child that is never called is never set up. `set_up` checks all layers, so
  it makes flax do step 4 and step 5 here: it assigns the child itself, then
  reads an attribute that no layer has.

  A layer with a `shared_weight_layer_id` is a child of the root, as in Pax. It
  is bound already, so flax does not adopt it in step 4.

  Args:
    parent: the layer that is in its `setup`.
    name: name of the child.
    tpl: its template.
    fields: fields of the child; they override those of `tpl`.

  Raises:
    RequiredError: a required field of the child is not set.
    UserError: see `BaseLayer.create_child`.
  """
  where = '.'.join((*parent.path, name))
  if not isinstance(tpl, config_lib.Config):
    raise errors.UserError(
      f'{where}: expected a config, such as Linear.config(...), got {tpl!r}'
    )
  known = config_lib.field_names(tpl)
  inherited = {
    field: getattr(parent, field)
    for field in INHERITED
    if field in known and not config_lib.is_set(tpl, field)
  }
  fields = {**inherited, **fields}
  shared = _built.setdefault(parent.scope.root, {})  # Step 1.
  shared_id = _shared_id(tpl)
  key = shared_id or id(tpl)
  _check_reachable(where, _apart.get(parent.scope.root, {}).get(key))
  if key in shared and _is_repeated(parent, where, tpl, shared[key]):
    key = (key, where)
  if key in shared:  # Step 2.
    first = shared[key]
    values = config_lib.field_values(tpl)
    _check_same(where, {**values, **fields}, first.where, first.fields)
    return first.child
  try:
    child = tpl.build(fields)  # Step 3.
  except config_lib.RequiredError as e:
    raise e.within(where) from None
  if shared_id:
    child = child.clone(parent=_at_root(parent, shared_id), name=shared_id)
  values = {**config_lib.field_values(tpl), **fields}
  shared[key] = _Built(tpl=tpl, where=where, fields=values, child=child)
  if _sets_up_all.get():
    setattr(parent, name, child)  # Step 4; `parent.name` is the clone.
    hasattr(getattr(parent, name), _NO_ATTRIBUTE)  # Step 5.
  return child


def _shared_id(tpl: config_lib.Config) -> str | None:
  """Returns the id by which a template shares its layer, if it has one."""
  return getattr(tpl, 'shared_weight_layer_id', None)


def _at_root(parent: nn.Module, shared_id: str) -> flax.core.Scope:
  """Returns the scope of a shared layer.

  Raises:
    UserError: the outermost module has another variable or child of that name.
  """
  root = parent.scope.root
  if root.name_reserved(shared_id):
    raise errors.UserError(
      f'shared_weight_layer_id {shared_id!r} is also the name of a child or a'
      ' weight of the outermost layer; use another id'
    )
  return root.push(shared_id)


def adopt(parent: nn.Module, name: str, child: Any) -> Any:
  """Makes a layer, or a list of them, children of `parent`.

  In `setup` it becomes the attribute `name`. In a method with the decorator
  `nn.compact`, where flax allows no attributes, it is only returned.

  Args:
    parent: the layer.
    name: name of the child, or of the list.
    child: what `build_child` returns, or a list of that.

  Raises:
    UserError: it is called elsewhere.
  """
  with context_values.set_within(_adopts, True):
    return _adopted(parent, name, child)


def adopts() -> bool:
  """Whether `adopt` makes a layer a child, whose fields are those it has."""
  return _adopts.get()


def _adopted(parent: nn.Module, name: str, child: Any) -> Any:
  try:
    setattr(parent, name, child)
    return getattr(parent, name)
  except flax.errors.SetAttributeFrozenModuleError:
    pass
  try:
    if isinstance(child, list):
      return [
        one.clone(parent=parent, name=f'{name}_{i}')
        for i, one in enumerate(child)
      ]
    return child.clone(parent=parent, name=name)
  except flax.errors.AssignSubModuleError:
    raise errors.UserError(
      f'{type(parent).__name__} creates the child {name!r} outside of `setup`;'
      ' call create_child in `setup`, or decorate the method with nn.compact'
    ) from None


def _is_repeated(parent, where: str, tpl, first: _Built) -> bool:
  """Whether a parent uses one template for several layers, as in a loop.

  That is so if it has the template in one field, or in none, and creates a
  child of another name. If its fields hold it twice, or it has an id for
  sharing, both children are one layer.
  """
  siblings = first.where.rpartition('.')[0] == where.rpartition('.')[0]
  if not siblings or first.where == where:
    return False
  if _shared_id(tpl):
    return False
  values = [getattr(parent, f.name, None) for f in dataclasses.fields(parent)]
  return _count(tpl, values) < 2


def _count(tpl, value: Any) -> int:
  """Returns how often lists, tuples and dicts hold one object."""
  if isinstance(value, dict):
    value = list(value.values())
  if isinstance(value, list | tuple):
    return sum(_count(tpl, one) for one in value)
  return int(value is tpl)


def _check_same(where: str, fields: dict, first: str, first_fields: dict):
  for name, other in fields.items():
    one = first_fields.get(name)
    if one is not other and one != other:
      raise errors.UserError(
        f'{where} and {first} share one config and so one layer, but the former'
        f' sets {name} to {other!r} and the latter to {one!r}; use a clone() of'
        ' the config for a separate layer'
      )


def keep_apart(parent: nn.Module, name: str, tpl: config_lib.Config):
  """Forbids sharing layers inside a child with layers outside it.

  Needed where flax transforms the child, for instance scans over it: the layers
  inside are then built separately. Call it in `setup`, before `create_child`.

  Args:
    parent: the layer that is in its `setup`.
    name: name of the child.
    tpl: template of the child.

  Raises:
    UserError: a config inside the template has been used outside it.
  """
  where = '.'.join((*parent.path, name))
  built = _built.setdefault(parent.scope.root, {})
  apart = _apart.setdefault(parent.scope.root, {})
  for config, _ in daglish.iterate(tpl):
    if config is tpl or not _is_template(config):
      continue
    key = _shared_id(config) or id(config)
    own = _Apart(config=config, where=where, within=tpl)
    if key in built:
      _check_reachable(built[key].where, own)
    if key in apart and apart[key].within is not tpl:
      _check_reachable(apart[key].where + '.', own)
    apart[key] = own


def _is_template(value: Any) -> bool:
  return (
    isinstance(value, config_lib.Config)
    and isinstance(value.cls, type)
    and issubclass(value.cls, nn.Module)
  )


def _check_reachable(where: str, apart: _Apart | None):
  """Raises an error if a layer at `where` shares a config of `apart`."""
  if apart is not None and not where.startswith(apart.where + '.'):
    raise errors.UserError(
      f'{where.rstrip(".")} and a layer inside {apart.where} share one config'
      f' of {config_lib.class_name(apart.config)}, but layers inside cannot be'
      ' shared; use a clone() of the config for a separate layer'
    )


def set_up(config: config_lib.Config):
  """Sets up a layer and all its children abstractly, as a check.

  Raises:
    UserError: a layer's `setup` rejects its fields.
  """
  with context_values.set_within(_sets_up_all, True):
    jax.eval_shape(
      lambda key: nn.init(
        lambda layer: hasattr(layer, _NO_ATTRIBUTE), config.Instantiate()
      )(key),
      jax.random.key(0),
    )
