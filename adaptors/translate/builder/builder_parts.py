"""Plain layers as parts of what `lingvo.core.builder` composes.

A container calls its parts with the arguments that the user's graph says, so a
part's JAX layer must take and return the same as its `FProp`, in the same
layout. Not every translated layer does: a recurrent one, for instance, is
time-major in Lingvo and batch-major here. So parts are registered as such. A
module of yours adds its own:

    @translates_part('my.layers.Scale')
    def scale(view: ParamsView) -> Translated:
      ...
"""

from collections.abc import Callable

from adaptors.equivalents import lingvo_layers
from adaptors.translate import registry
from adaptors.translate.layers import basic_layers
from adaptors.translate.layers.basic_layers import base_fields
from adaptors.translate.registry import Translated
from adaptors.translate.tensorflow_functions import ACTIVATIONS
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView, class_path
from pax_compat.layers import linears, stochastics
from pax_compat.layers.graph import arguments, containers

_parts: dict[str, Callable] = {}


def translates_part(dotted_path: str):
  """Registers the decorated function for a class that can be a part.

  It takes a `ParamsView` and returns a `Translated`, or None where something
  inside has no translation.
  """

  def register(fn):
    _parts[dotted_path] = fn
    return registry.translates(dotted_path, fallback=True)(fn)

  return register


def is_part(cls: type) -> bool:
  """Whether a class has a translation as a part of what builders compose."""
  return registry.find(cls, _parts) is not None


def translate_part(view: ParamsView) -> Translated | None:
  """Translates a part; see `registry.translate` and `Report.bridge_part`."""
  registry.load_translators()
  cls = view.params.cls
  translator = registry.find(cls, _parts)
  bridge_part = view.report.bridge_part
  if bridge_part and translator is None and registry.find(cls) is None:
    return bridge_part(view)
  if translator is None:
    why = 'it is translated, but not as a part of what a builder composes'
    if registry.find(cls) is None:
      why = registry.no_translator(cls)
    view.issue(
      '',
      f'{why}; @translates_part({class_path(cls)!r})'
      ' (adaptors.translate.builder.builder_parts) registers a translation',
    )
    return None
  issues_before = len(view.report.issues)
  translated = translator(view)
  view.finish()
  return translated if len(view.report.issues) == issues_before else None


def common_fields(view: ParamsView) -> dict:
  """Returns `base_fields`; children, if any, take `params_init` over."""
  view.get('params_init')
  return base_fields(view)


translates_part('lingvo.core.layers.LayerNorm')(basic_layers.layer_norm)
translates_part('lingvo.core.layers.ProjectionLayer')(basic_layers.projection)


@translates_part('lingvo.core.builder_layers.LinearLayer')
def linear(view: ParamsView) -> Translated:
  """`LinearLayer`."""
  shape = (view.get('input_dims'), view.get('output_dims'))
  config = linears.Linear.config(
    input_dims=shape[0],
    output_dims=shape[1],
    params_init=basic_layers.weight_init(view, shape),
    **base_fields(view),
  )
  return Translated(config, VariableMap([Variable(('w',), 'w')]))


@translates_part('lingvo.core.builder_layers.BiasLayer')
def bias(view: ParamsView) -> Translated:
  """`BiasLayer`."""
  config = linears.Bias.config(dims=view.get('dims'), **common_fields(view))
  return Translated(config, VariableMap([Variable(('b',), 'b')]))


@translates_part('lingvo.core.activations.ActivationLayer')
def activation(view: ParamsView) -> Translated:
  """`ActivationLayer`."""
  name = view.get('activation')
  fields = common_fields(view)
  if name not in ACTIVATIONS:
    known = ', '.join(sorted(ACTIVATIONS))
    view.issue('activation', f'{name!r} is not translated, only {known}')
    name = 'NONE'
  return Translated(
    lingvo_layers.Activation.config(fn=ACTIVATIONS[name], **fields)
  )


@translates_part('lingvo.core.layers.IdentityLayer')
def identity(view: ParamsView) -> Translated:
  """`IdentityLayer`, which returns the first of its arguments."""
  fields = common_fields(view)
  return Translated(arguments.Select.config(indices=[0], **fields))


@translates_part('lingvo.core.layers.FetchLayer')
def fetch(view: ParamsView) -> Translated:
  """`FetchLayer`: a `BranchLayer` around it finds what it returns."""
  return Translated(arguments.Select.config(**common_fields(view)))


@translates_part('lingvo.core.layers.DropoutLayer')
@translates_part('lingvo.core.layers.DeterministicDropoutLayer')
def dropout(view: ParamsView) -> Translated:
  """`DropoutLayer`; the deterministic one draws from another source."""
  fields = common_fields(view)
  dims = view.get('noise_shape_broadcast_dims')
  config = stochastics.Dropout.config(
    keep_prob=view.get('keep_prob'),
    noise_shape=view.get('noise_shape'),
    noise_shape_broadcast_dims=dims or None,
    dropout_at_eval=view.get('dropout_at_eval'),
    **fields,
  )
  return Translated(config)


@translates_part('lingvo.core.layers.FeedForwardNet')
def feed_forward_net(view: ParamsView) -> Translated | None:
  """`FeedForwardNet`, of one argument: projections, each with its dropout."""
  found = basic_layers.feed_forward_net(view)
  if found is None:
    return None
  parts, variables = [], VariableMap()
  for i, (projection, keep_prob) in enumerate(found):
    variables += projection.variables.under(f'fc[{i}]', f'layers_{2 * i}')
    parts += [
      projection.config,
      stochastics.Dropout.config(keep_prob=keep_prob),
    ]
  return Translated(containers.Sequential.config(layers=parts), variables)


@translates_part('lingvo.core.layers_with_attention.StochasticResidualLayer')
def stochastic_residual(view: ParamsView) -> Translated:
  """`StochasticResidualLayer`."""
  return Translated(
    stochastics.StochasticResidual.config(
      residual_weight=view.get('residual_weight'),
      survival_prob=view.get('survival_prob'),
      **common_fields(view),
    )
  )
