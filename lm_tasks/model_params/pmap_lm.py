"""Transformer language models that every device has a copy of."""

from lm_tasks.model_params import networks, settings
from pax_compat import base_experiment, layers, tasks_lib
from pax_compat import config as config_lib
from pax_compat.config import Config


class TransformerLmPmapAdam(base_experiment.BaseExperiment):
  """A Transformer language model in float32, trained with Adam.

  Every device has all weights and a part of the batch.

  Class attributes, beyond those that are fields of layers:
    REL_POS_EMB_DIM: dims of relative position embeddings in attention, as in
      Transformer-XL; None for none.
    USE_BIAS: whether the projections of attention have biases.
    DECAY_END: the step where the learning rate is a tenth of its peak.
  """

  NUM_LAYERS = 32
  VOCAB_SIZE = 32000
  NUM_HEADS = 16
  MODEL_DIMS = 1024
  HIDDEN_DIMS = MODEL_DIMS * 4
  INPUT_DROPOUT_PROB = 0.0
  DROPOUT_PROB = 0.0
  LEARNING_RATE = 1e-3
  WEIGHT_DECAY = 1e-3
  USE_REPEATED_LAYER = False
  ACTIVATION_CLS = layers.ReLU
  USE_GATED_ACTIVATION = False
  DECAY_END = 300_000
  REL_POS_EMB_DIM = None

  PACKED_INPUT = True
  ATTEN_LOGIT_CAP = 50.0
  USE_BIAS = False

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    model = layers.LanguageModel.config(name='xformer_lm')
    networks.set_vocabulary(
      model.lm_tpl, model_dims=self.MODEL_DIMS, vocab_size=self.VOCAB_SIZE
    )
    network = self._stack()
    if self.USE_REPEATED_LAYER:
      network = networks.repeated(network, self.NUM_LAYERS)
    model.lm_tpl.set(
      packed_input=self.PACKED_INPUT, stacked_transformer_tpl=network
    )
    settings.maybe_setup_moe_params(network)
    task = tasks_lib.SingleTask.config(name='xformer_task', model=model)
    settings.set_default_adam(
      task, self.LEARNING_RATE, self.WEIGHT_DECAY, decay_end=self.DECAY_END
    )
    settings.set_pax_defaults(task)
    return task

  def _stack(self) -> Config:
    stack = layers.StackedTransformer.config(
      model_dims=self.MODEL_DIMS,
      hidden_dims=self.HIDDEN_DIMS,
      num_layers=self.NUM_LAYERS,
      num_heads=self.NUM_HEADS,
      input_dropout_prob=self.INPUT_DROPOUT_PROB,
      dropout_prob=self.DROPOUT_PROB,
    )
    layer = stack.transformer_layer_params_tpl
    layer.tr_atten_tpl.set(
      atten_logit_cap=self.ATTEN_LOGIT_CAP, use_bias=self.USE_BIAS
    )
    layer.tr_fflayer_tpl.set(
      activation_tpl=self.ACTIVATION_CLS.config(),
      use_gated_activation=self.USE_GATED_ACTIVATION,
    )
    if self.REL_POS_EMB_DIM is not None:
      layer.tr_atten_tpl = layers.DotProductAttentionXL.config(
        rel_pos_emb_dim=self.REL_POS_EMB_DIM,
        **config_lib.set_fields(layer.tr_atten_tpl),
      )
    return stack
