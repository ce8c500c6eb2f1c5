"""Layers whose weights may have a gradient for each example."""

from collections.abc import Mapping
from typing import Any, Self

from pax_compat import base_layer
from pax_compat.config import Config
from pax_compat.ghostnorm import base, embedding, linears
from pax_compat.layer_core.gradients import ghost_norms
from pax_compat.layers.attentions import attention_projections
from pax_compat.layers.convolutions import depthwise_convolutions
from pax_compat.layers.embeddings import embedding_tables
from pax_compat.layers.linears import Bias, Linear
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.transformers import transformer_moe

# Name of the wrapped layer within the wrapper.
LAYER = 'ghostnorm_wrapped_layer'

_REPLACED: Mapping[type, type] = {
  Bias: linears.BiasGhostNorm,
  Linear: linears.LinearGhostNorm,
  embedding_tables.Embedding: embedding.EmbeddingGhostNorm,
}
_WRAPPED = (
  attention_projections.AttentionProjection,
  attention_projections.CombinedQKVProjectionLayer,
  attention_projections.PerDimScale,
  depthwise_convolutions.CausalDepthwiseConv1D,
  embedding_tables.Embedding,
  transformer_moe.TransformerFeedForwardMoe,
  norm_layers.GroupNorm,
  norm_layers.LayerNorm,
  norm_layers.RmsNorm,
)


class WrappedGhostNorm(base_layer.BaseLayer):
  """A layer whose weights may have a gradient for each example.

  Ghost clipping computes the norms of those of its weights that have no ghost
  norms from these gradients. Outputs and arguments that are arrays start with
  the rows of the batch, if weights are `base.ParamWithAux`.

  Attributes:
    layer_tpl: the layer.
  """

  layer_tpl: Config = base_layer.template_field(None)

  def setup(self):
    self.create_child(LAYER, self.layer_tpl)

  def __call__(self, *args, **kwargs) -> Any:
    """Calls the layer."""
    return self._call('__call__', args, kwargs)

  def emb_lookup(self, *args, **kwargs) -> Any:
    """Calls `emb_lookup` of the layer."""
    return self._call('emb_lookup', args, kwargs)

  def _call(self, method: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    ghost_norms.wrap(self)
    layer = self.ghostnorm_wrapped_layer
    return base.call(layer, getattr(layer, method), method, *args, **kwargs)


class GhostNormPaxConfig(Config):
  """A layer's config that builds the layer within a `WrappedGhostNorm`."""

  def Instantiate(self, **overrides) -> WrappedGhostNorm:  # noqa: N802 (Pax)
    """Builds the wrapper; see `Config.Instantiate`."""
    return self._wrapper(overrides).Instantiate()

  def build(self, overrides: dict[str, Any]) -> WrappedGhostNorm:
    """Builds the wrapper without a flax parent; see `Config.build`."""
    return self._wrapper(overrides).build({})

  def _wrapper(self, overrides: dict[str, Any]) -> Config:
    layer = self.to_pax_config().set(**overrides)
    return WrappedGhostNorm.config(layer_tpl=layer)

  @classmethod
  def from_pax_config(cls, pax_config: Config) -> Self:
    """Returns such a config with the fields of another."""
    return cls.__unflatten__(*pax_config.__flatten__())

  def to_pax_config(self) -> Config:
    """Returns a plain config with the fields of this one."""
    return Config.__unflatten__(*self.__flatten__())


def generate_wrapped_template(
  model_or_layer_p: Config,
  force_no_replace: bool = False,
  force_wrap: bool = False,
) -> Config:
  """Changes the template of a model for ghost clipping, and returns it.

  Layers within it that Pax's protocol supports are replaced by those of
  `ghostnorm`, or wrapped in a `WrappedGhostNorm`. `learners.sgf` needs only
  that layers without ghost norms are wrapped, by `force_wrap`.

  Args:
    model_or_layer_p: the template.
    force_no_replace: whether the template itself is not replaced.
    force_wrap: whether it is wrapped, whatever its class is.
  """
  tpl = model_or_layer_p
  if not force_no_replace and tpl.cls in _REPLACED:
    tpl.cls = _REPLACED[tpl.cls]
    return tpl
  if force_wrap or _is_wrapped(tpl):
    return GhostNormPaxConfig.from_pax_config(tpl)
  for name in base_layer.get_template_fields(tpl):
    value = getattr(tpl, name)
    changed = _with_templates(value)
    if changed is not value:
      setattr(tpl, name, changed)
  return tpl


def _is_wrapped(tpl: Config) -> bool:
  return isinstance(tpl.cls, type) and issubclass(tpl.cls, _WRAPPED)


def _with_templates(value: Any) -> Any:
  """Returns the value of a field with the templates in it changed."""
  if isinstance(value, Config):
    is_layer = isinstance(value.cls, type) and issubclass(
      value.cls, base_layer.BaseLayer
    )
    return generate_wrapped_template(value) if is_layer else value
  if isinstance(value, dict):
    changed = {key: _with_templates(x) for key, x in value.items()}
    pairs = zip(changed.values(), value.values(), strict=True)
  elif isinstance(value, list | tuple):
    changed = type(value)(map(_with_templates, value))
    pairs = zip(changed, value, strict=True)
  else:
    return value
  return value if all(new is old for new, old in pairs) else changed
