"""Experiments of a user whose layers are not what we translate."""

from lingvo import model_registry
from lingvo.core import layers, layers_with_attention, optimizer
from lingvo.tasks.lm import layers as lm_layers

from lm_tasks.lingvo_params import python_docs


class OwnFProp(layers_with_attention.TransformerFeedForwardLayer):
  """Computes something else than its parent."""

  def FProp(self, theta, inputs, paddings):
    return 2.0 * super().FProp(theta, inputs, paddings)


class OwnInit(layers.LayerNorm):
  """Is made otherwise than its parent."""

  def __init__(self, params):
    super().__init__(params)
    self._scale = 2.0


class OwnVariables(layers.EmbeddingLayer):
  """Has other variables than its parent."""

  def _CreateLayerVariables(self):
    super()._CreateLayerVariables()


class Louder:
  """Is mixed in."""

  def FProp(self, theta, *args):
    return 2.0 * super().FProp(theta, *args)


class OwnMixture(Louder, layers.PositionalEmbeddingLayer):
  """Overrides nothing itself."""


class OwnSoftmax(layers.SoftmaxLayer):
  """Derives from nothing that is translated."""


class OwnDefaults(layers.LayerNorm):
  """Changes nothing but what it starts with."""

  @classmethod
  def Params(cls):
    return super().Params().Set(epsilon=1e-3)


class OwnUnknownDefaults(layers.LayerNorm):
  """Starts with what is not translated."""

  @classmethod
  def Params(cls):
    scopes = {'scale': ['own']}
    return (
      super().Params().Set(center=False, child_variable_scope_override=scopes)
    )


class OwnOptimizer(optimizer.Adam):
  """Updates otherwise than its parent."""

  def Apply(self, lr, var_grad):
    return super().Apply(2 * lr, var_grad)


class OwnLm(lm_layers.TransformerLm):
  """Has another loss."""

  def FProp(self, theta, *args, **kwargs):
    return super().FProp(theta, *args, **kwargs)


@model_registry.RegisterSingleTaskModel
class ManyOwn(python_docs.TransformerLmTiny):
  """A decoder of which little is Lingvo's own."""

  def Task(self):
    p = super().Task()
    feed_forward = p.lm.trans_tpl.tr_fflayer_tpl
    p.lm.trans_tpl.tr_fflayer_tpl = OwnFProp.Params().Set(
      hidden_dim=feed_forward.hidden_dim
    )
    p.lm.trans_tpl.tr_atten_tpl.ln_tpl = OwnInit.Params()
    p.lm.trans_tpl.tr_atten_tpl.residual_function = 'HIGHWAY'
    p.lm.input_dropout_prob = 'some'
    p.lm.emb = OwnVariables.Params().Set(
      vocab_size=self.VOCAB_SIZE, embedding_dim=self.MODEL_DIM
    )
    p.lm.position_emb = OwnMixture.Params()
    p.lm.softmax = OwnSoftmax.Params().Set(num_classes=self.VOCAB_SIZE)
    p.train.optimizer = OwnOptimizer.ParamsB()
    p.train.lr_schedule.warmup_steps = 'a hundred'
    return p


@model_registry.RegisterSingleTaskModel
class OwnNetwork(python_docs.TransformerLmTiny):
  """A decoder with its own loss."""

  def Task(self):
    p = super().Task()
    p.lm = OwnLm.Params().Set(**dict(p.lm.IterParams()) | {'cls': OwnLm})
    return p
