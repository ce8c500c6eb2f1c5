"""Translators of `lingvo.core.builder_layers`, except `GraphLayer`."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from adaptors.equivalents import lingvo_layers
from adaptors.translate import functions
from adaptors.translate.builder.builder_parts import (
  translate_part,
  translates_part,
)
from adaptors.translate.layers.basic_layers import same_init
from adaptors.translate.registry import Translated
from adaptors.translate.transformers.stacks import per_layer, stacked
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers.graph import arguments, containers, wrappers

_BUILDER = 'lingvo.core.builder_layers'

# Layers that may return a tuple of one output; Lingvo's return the output.
_TUPLES_OF_ONE = (arguments.Apply, lingvo_layers.ParallelRepeat)


def below(name: str, jax: str, child: Translated) -> dict[str, str]:
  """Returns the entries of `Translated.children` for one child.

  Args:
    name: the child's name in Lingvo.
    jax: its path in JAX.
    child: its translation.
  """
  inner = {f'{name}.{k}': f'{jax}.{path}' for k, path in child.children.items()}
  return {name: jax, **inner}


def named(view: ParamsView, templates: Iterable[Any]) -> list[str]:
  """Returns the names of templates; adds issues unless they are unique."""
  names = [template.name for template in templates]
  for name in sorted(set(names)):
    if not name or names.count(name) > 1:
      view.issue(
        'sub',
        f'{names.count(name)} layers are called {name!r}; expected a unique'
        ' name for each',
      )
  return names


def _parts(view: ParamsView, templates: list, field: str) -> list | None:
  """Returns the translations of templates in a list."""
  parts = [
    translate_part(view.adopt(template, f'{field}[{i}]'))
    for i, template in enumerate(templates)
  ]
  return None if None in parts else parts


def _with_sub(
  view: ParamsView, make: Callable[[list], Any]
) -> Translated | None:
  """Translates a layer that has a list of layers, `sub`.

  Args:
    view: of the layer.
    make: the configs of `sub` -> the config of the layer.
  """
  templates = view.get('sub')
  names = named(view, templates)
  parts = _parts(view, templates, 'sub')
  if parts is None:
    return None
  variables, children = VariableMap(), {}
  for i, (name, part) in enumerate(zip(names, parts, strict=True)):
    variables += part.variables.under(name, f'layers_{i}')
    children |= below(name, f'layers_{i}', part)
  config = make([part.config for part in parts])
  return Translated(config, variables, children)


def _sequence(layers: list) -> Any:
  if not layers:
    return arguments.Select.config()
  if issubclass(layers[-1].cls, _TUPLES_OF_ONE):
    layers = [*layers, arguments.Select.config()]
  return containers.Sequential.config(layers=layers, unpack_dicts=False)


@translates_part(f'{_BUILDER}.SequentialLayer')
def sequential(view: ParamsView) -> Translated | None:
  """Returns a sequence; without layers an identity."""
  view.ignore('nothing reads it there', 'save_output')
  repeat = view.get('repeat')
  if repeat <= 1:
    return _with_sub(view, _sequence)
  rounds = [_with_sub(view, _sequence) for _ in range(repeat)]
  if None in rounds:
    return None
  variables, children = VariableMap(), {}
  for i, part in enumerate(rounds):
    variables += part.variables.under(f'rep[{i}]', f'layers_{i}')
    children |= below(f'rep[{i}]', f'layers_{i}', part)
  config = _sequence([part.config for part in rounds])
  return Translated(config, variables, children)


@translates_part(f'{_BUILDER}.UnarySequentialLayer')
def unary_sequential(view: ParamsView) -> Translated | None:
  """Returns a sequence that passes each output on as one argument."""

  def make(layers: list) -> Any:
    if not layers:
      return arguments.Select.config()
    return containers.Sequential.config(
      layers=layers, unpack_tuples=False, unpack_dicts=False
    )

  return _with_sub(view, make)


@translates_part(f'{_BUILDER}.ParallelLayer')
def parallel(view: ParamsView) -> Translated | None:
  """Returns layers with the same arguments, whose outputs are merged."""
  view.ignore('it only computes shapes', 'merge_meta')
  merge = functions.translate(view, 'merge')
  if not view.get('sub'):
    view.issue('sub', 'it is empty; expected at least one layer')
  if merge is None:
    return None
  if merge is containers.flat:
    merge = 'flat'
  else:
    merge = functools.partial(merge_tuples, merge=merge)
  return _with_sub(
    view, lambda layers: containers.Parallel.config(layers=layers, merge=merge)
  )


def merge_tuples(outputs: list, merge: Callable) -> Any:
  """Returns merged outputs, which are passed to the function as tuples.

  Args:
    outputs: one of each layer.
    merge: a list of tuples -> a tuple.
  """
  merged = tuple(merge([containers.as_tuple(output) for output in outputs]))
  return merged[0] if len(merged) == 1 else merged


@translates_part(f'{_BUILDER}.FnLayer')
def fn_layer(view: ParamsView) -> Translated | None:
  """Returns a layer that calls a function; see `functions`."""
  view.ignore('it only computes shapes', 'fn_meta')
  fn = functions.translate(view, 'fn')
  if fn is None:
    return None
  return Translated(arguments.Apply.config(fn=fn))


@translates_part(f'{_BUILDER}.MapLayer')
def map_layer(view: ParamsView) -> Translated | None:
  """Returns a layer that maps a function over its arguments."""
  view.ignore('it only computes shapes', 'fn_meta')
  kwargs = view.get('kwargs')
  if kwargs:
    view.params.fn = functools.partial(view.params.fn, **kwargs)
  fn = functions.translate(view, 'fn')
  if fn is None:
    return None
  return Translated(arguments.ApplyToEach.config(fn=fn))


@translates_part(f'{_BUILDER}.BranchLayer')
def branch(view: ParamsView) -> Translated | None:
  """Returns a layer that also returns outputs of `FetchLayer`s in its body."""
  body = translate_part(view.child('body'))
  fetches = view.get('fetches')
  if body is None:
    return None
  for name in fetches:
    if name not in body.children:
      view.issue(
        'fetches',
        f'{name!r} is not a layer of the body that can be fetched from;'
        f' expected some of {", ".join(body.children) or "none"}',
      )
  config = containers.Branch.config(
    body=body.config,
    fetches=[body.children.get(name, '') for name in fetches],
  )
  return Translated(
    config, body.variables.under('body', 'main'), below('body', 'main', body)
  )


@translates_part(f'{_BUILDER}.BatchParallelLayer')
def batch_parallel(view: ParamsView) -> Translated | None:
  """Returns the child: the mesh shards the batch anyway."""
  sub = translate_part(view.child('sub'))
  if sub is None:
    return None
  children = {f'sub.{name}': path for name, path in sub.children.items()}
  return Translated(sub.config, sub.variables.under('sub', ''), children)


@translates_part(f'{_BUILDER}.RematerializationLayer')
def rematerialization(view: ParamsView) -> Translated | None:
  body = translate_part(view.child('body'))
  if body is None:
    return None
  config = wrappers.Rematerialize.config(body=body.config)
  return Translated(config, body.variables.under('body', 'main'))


@translates_part(f'{_BUILDER}.RepeatLayer')
def repeat_layer(view: ParamsView) -> Translated | None:
  """Returns a repeated layer, whose variables are always stacked here."""
  view.ignore('the result is the same', 'unroll')
  repeat, start = view.get('repeat'), view.get('start_layer_id')
  body = translate_part(view.child('body'))
  own_variables = view.get('per_layer_vars')
  if start and not own_variables:
    view.issue(
      'start_layer_id', f'{start} is translated with per_layer_vars only'
    )
  if body is None:
    return None
  path = 'repeat/sub/main'
  if own_variables:
    names = [f'body_iter_{i:05}' for i in range(start, start + repeat)]
    variables = per_layer(view, body.variables, names, path)
  else:
    variables = stacked(view, body.variables, repeat, path)
  config = wrappers.RepeatAll.config(body=body.config, x_times=repeat)
  return Translated(config, variables)


@translates_part(f'{_BUILDER}.ParallelRepeatLayer')
def parallel_repeat(view: ParamsView) -> Translated | None:
  view.ignore('Lingvo does not read it either', 'unroll', 'start_layer_id')
  view.require('per_layer_vars', False)
  repeat = view.get('repeat')
  body = translate_part(view.child('body'))
  if body is None:
    return None
  variables = stacked(view, body.variables, repeat, 'main')
  config = lingvo_layers.ParallelRepeat.config(body=body.config, x_times=repeat)
  return Translated(config, variables)


@translates_part(f'{_BUILDER}.SoftCondLayer')
def soft_cond(view: ParamsView) -> Translated | None:
  view.ignore('Lingvo does not read it either', 'num_tasks')
  body = translate_part(view.child('body'))
  config_fields = dict(
    num_experts=view.get('num_experts'),
    cond_dim=view.get('cond_dim'),
    nonzeros_mean=view.get('nonzeros_mean'),
    params_init=same_init(view, 'params_init'),
  )
  if body is None:
    return None
  variables = stacked(
    view, body.variables, config_fields['num_experts'], 'main'
  )
  config = wrappers.SoftCond.config(body=body.config, **config_fields)
  return Translated(config, variables + VariableMap([Variable(('w',), 'w')]))


@translates_part(f'{_BUILDER}.FirstNLayer')
def first_n(view: ParamsView) -> Translated:
  indices = list(range(view.get('n')))
  return Translated(arguments.Select.config(indices=indices))


@translates_part(f'{_BUILDER}.ArgIndexLayer')
def arg_index(view: ParamsView) -> Translated:
  indices = list(view.get('idx'))
  return Translated(arguments.Select.config(indices=indices))


@translates_part(f'{_BUILDER}.CreateNestedMapLayer')
def create_nested_map(view: ParamsView) -> Translated:
  keys = list(view.get('keys'))
  return Translated(arguments.MakeNestedMap.config(keys=keys))


@translates_part(f'{_BUILDER}.PrintShapeLayer')
def print_shape(view: ParamsView) -> Translated:
  return Translated(arguments.LogShapes.config())


@translates_part(f'{_BUILDER}.ReshapeLayer')
def reshape(view: ParamsView) -> Translated:
  shape = list(view.get('shape'))
  return Translated(arguments.Reshape.config(shape=shape))


@translates_part(f'{_BUILDER}.ConcatLayer')
def concat(view: ParamsView) -> Translated:
  axis = view.get('axis')
  return Translated(arguments.Concat.config(axis=axis))


@translates_part(f'{_BUILDER}.SliceLayer')
def slice_layer(view: ParamsView) -> Translated:
  key = list(view.get('key'))
  return Translated(arguments.Slice.config(key=key))
