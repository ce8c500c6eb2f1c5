"""The registry of sub-layers of `lingvo.core.builder` ("parts").

A container passes its parts the arguments that the user's graph names, so a
part's JAX layer has the arguments, outputs and layout of its `FProp`. Not every
translated layer has: a recurrent one, for example, is time-major in Lingvo and
batch-major here. Therefore parts have a separate registry. Your module
registers its own:

    @translates_part('my.layers.Scale')
    def scale(view: ParamsView) -> Translated:
      ...
"""

from collections.abc import Callable

from adaptors.equivalents import lingvo_layers
from adaptors.translate import activations, registry
from adaptors.translate.layers import basic_layers, convolutions
from adaptors.translate.registry import Translated
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView, class_path
from pax_compat.layers import linears, stochastics
from pax_compat.layers.graph import arguments, containers

_parts: dict[str, Callable] = {}


def translates_part(dotted_path: str):
  """Registers the decorated function for a class that can be a part.

  It takes a `ParamsView` and returns a `Translated`, or None after an issue.
  """

  def register(fn):
    _parts[dotted_path] = fn
    return registry.translates(dotted_path, fallback=True)(fn)

  return register


def is_part(cls: type) -> bool:
  """Whether a class has a translation as a part."""
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
    why = 'it has a translator, but not one for a sub-layer of a builder'
    if registry.find(cls) is None:
      why = registry.no_translator(cls)
    view.issue(
      '',
      f'{why}; @translates_part({class_path(cls)!r})'
      ' (adaptors.translate.builder.builder_parts) registers a translation',
    )
    return None
  issues_before = len(view.report.issues)
  translated = registry.call(translator, view)
  view.finish()
  return translated if len(view.report.issues) == issues_before else None


translates_part('lingvo.core.layers.LayerNorm')(basic_layers.layer_norm)
translates_part('lingvo.core.layers.ProjectionLayer')(basic_layers.projection)
translates_part('lingvo.core.bn_layers.BatchNormLayer')(convolutions.batch_norm)


@translates_part('lingvo.core.builder_layers.LinearLayer')
def linear(view: ParamsView) -> Translated:
  shape = (view.get('input_dims'), view.get('output_dims'))
  config = linears.Linear.config(
    input_dims=shape[0],
    output_dims=shape[1],
    params_init=basic_layers.weight_init(view, shape),
  )
  return Translated(config, VariableMap([Variable(('w',), 'w')]))


@translates_part('lingvo.core.builder_layers.BiasLayer')
def bias(view: ParamsView) -> Translated:
  view.get('params_init')  # The weight starts at 0.
  config = linears.Bias.config(dims=view.get('dims'))
  return Translated(config, VariableMap([Variable(('b',), 'b')]))


@translates_part('lingvo.core.activations.ActivationLayer')
def activation(view: ParamsView) -> Translated:
  name = view.get('activation')
  if name not in activations.ACTIVATIONS:
    known = ', '.join(sorted(activations.ACTIVATIONS))
    view.issue('activation', f'{name!r} is not translated, only {known}')
    name = 'NONE'
  fn = activations.ACTIVATIONS[name].fn
  return Translated(lingvo_layers.Activation.config(fn=fn))


@translates_part('lingvo.core.layers.IdentityLayer')
def identity(view: ParamsView) -> Translated:
  """Returns a layer that returns its first argument."""
  return Translated(arguments.Select.config(indices=[0]))


@translates_part('lingvo.core.layers.FetchLayer')
def fetch(view: ParamsView) -> Translated:
  """Returns an identity, whose output a `BranchLayer` around it returns."""
  return Translated(arguments.Select.config())


@translates_part('lingvo.core.layers.DropoutLayer')
@translates_part('lingvo.core.layers.DeterministicDropoutLayer')
def dropout(view: ParamsView) -> Translated:
  """Returns dropout; only the source of the random numbers differs."""
  dims = view.get('noise_shape_broadcast_dims')
  config = stochastics.Dropout.config(
    keep_prob=view.get('keep_prob'),
    noise_shape=view.get('noise_shape'),
    noise_shape_broadcast_dims=dims or None,
    dropout_at_eval=view.get('dropout_at_eval'),
  )
  return Translated(config)


@translates_part('lingvo.core.layers.FeedForwardNet')
def feed_forward_net(view: ParamsView) -> Translated | None:
  """Returns a sequence of projections and dropouts."""
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
  return Translated(
    stochastics.StochasticResidual.config(
      residual_weight=view.get('residual_weight'),
      survival_prob=view.get('survival_prob'),
    )
  )
