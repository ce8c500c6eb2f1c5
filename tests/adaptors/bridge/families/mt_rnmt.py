"""mt's RNMT+, as in `mt.wmt14_en_de.WmtEnDeRNMT`."""

from adaptors import lingvo_runtime
from tests.adaptors.bridge.families import sentence_pairs

batch = sentence_pairs.batch


def task_params(model=None, encoder_layers=1, decoder_layers=3):
  """Returns Params of a small RNMT+, without dropout.

  Args:
    model: Params of a model of the kind, to be filled; None for mt's.
    encoder_layers: number of LSTM layers of the encoder.
    decoder_layers: of the decoder; from the third on they are residual.
  """
  base_config = lingvo_runtime.module('lingvo.tasks.mt.base_config')
  if model is None:
    module = lingvo_runtime.module('lingvo.tasks.mt.model')
    model = module.RNMTModel.Params()
  sizes = dict(
    vocab_size=sentence_pairs.VOCAB_SIZE,
    embedding_dim=8,
    hidden_dim=8,
    num_heads=2,
    num_encoder_layers=encoder_layers,
    num_decoder_layers=decoder_layers,
  )
  rates = dict(
    learning_rate=1e-3,
    lr_warmup_steps=500,
    lr_decay_start=400_000,
    lr_decay_end=1_200_000,
    lr_min=0.5,
  )
  params = base_config.SetupRNMTParams(
    model,
    name='mt_rnmt',
    atten_dropout_prob=0.0,
    residual_dropout_prob=0.0,
    ls_uncertainty=0.1,
    l2_regularizer_weight=1e-5,
    adam_beta2=0.98,
    adam_epsilon=1e-6,
    **sizes,
    **rates,
  )
  # The stock experiment also uses the hidden dim.
  params.decoder.rnn_cell_dim = sizes['hidden_dim']
  return params
