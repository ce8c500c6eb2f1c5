"""Lingvo's language models on the One Billion Word benchmark.

Names and Params equal Lingvo's own `lm.one_billion_wds.*`; once installed, this
module is `lingvo.tasks.lm.params.one_billion_wds`. The corpus and its
vocabulary are read from `CORPUS_DIR`, to which Lingvo's tool
`lingvo.tasks.lm.tools.download_lm1b` writes them. For another path:

    python -m pax_compat.main \
      --exp=lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmax \
      --model_params_override="input.file_pattern: text:/data/lm1b/news.en*" \
      --job_log_dir=/data/run1

Hardware: any.
Time: not measured here, as the corpus has to be downloaded.
Metric: `log_pplx` on Dev and Test, in nats per word; not measured here.
"""

import os

from lingvo import model_registry
from lingvo.core import (
  base_model_params,
  layers,
  optimizer,
  py_utils,
  schedule,
  tokenizers,
)
from lingvo.tasks.lm import input_generator, model
from lingvo.tasks.lm import layers as lm_layers

_HELD_OUT = 'heldout-monolingual.tokenized.shuffled/news.en.heldout-'


class WordLevelOneBwdsBase(base_model_params.SingleTaskModelParams):
  """A two-layer LSTM on the words of the corpus."""

  CORPUS_DIR = '/tmp/lm1b/1-billion-word-language-modeling-benchmark-r13output/'
  WORD_VOCAB = os.path.join(CORPUS_DIR, 'vocab.txt')
  VOCAB_SIZE = 793472
  MAX_TOKENS = 1024

  EMBEDDING_DIM = 1024
  RNN_STATE_DIM = 8192
  # Numbers of shards of embeddings and softmax weights.
  NUM_EMBEDDING_SHARDS = 8
  NUM_SOFTMAX_SHARDS = 8
  # Sampled words in the softmax of a training step.
  NUM_SAMPLED = 8192

  @classmethod
  def Train(cls):
    """Returns 99 shards of the corpus, bucketed by length."""
    return cls._Input(
      'train', 'training-monolingual.tokenized.shuffled/news.en*'
    ).Set(
      bucket_batch_limit=[1024, 512, 256, 256, 128, 128, 64, 32, 16],
      file_buffer_size=10_000_000,
      file_parallelism=10,
      num_batcher_threads=16,
    )

  @classmethod
  def Dev(cls):
    """Returns a held-out shard of 6206 sentences, in order."""
    return cls._HeldOut('dev', '00001*', 6206)

  @classmethod
  def Test(cls):
    """Returns another held-out shard, of 6075 sentences."""
    return cls._HeldOut('test', '00000*', 6075)

  @classmethod
  def _HeldOut(cls, name, shard, num_samples):
    return cls._Input(name, _HELD_OUT + shard).Set(
      bucket_batch_limit=[128, 64, 32, 32, 16, 16, 4, 2, 1],
      file_buffer_size=1,
      file_parallelism=1,
      num_samples=num_samples,
    )

  @classmethod
  def _Input(cls, name, files):
    return input_generator.LmInput.Params().Set(
      name=f'1bwds_{name}_set',
      file_pattern='text:' + os.path.join(cls.CORPUS_DIR, files),
      tokenizer=tokenizers.VocabFileTokenizer.Params().Set(
        token_vocab_filepath=cls.WORD_VOCAB,
        vocab_size=cls.VOCAB_SIZE,
        target_unk_id=3,
      ),
      bucket_upper_bound=[10, 20, 30, 40, 50, 100, 256, 512, 1024],
      target_max_length=cls.MAX_TOKENS,
    )

  @classmethod
  def Task(cls):
    """Returns the LSTM with a full softmax, trained with Adagrad."""
    p = model.LanguageModel.Params().Set(name='1bwds_word_level_lm')
    p.lm = lm_layers.RnnLm.CommonParams(
      vocab_size=cls.VOCAB_SIZE,
      emb_dim=cls.EMBEDDING_DIM,
      num_layers=2,
      rnn_dims=cls.EMBEDDING_DIM,
      rnn_hidden_dims=cls.RNN_STATE_DIM,
      # Beyond the last layer: no residual connections.
      residual_start=3,
    )
    p.lm.emb.Set(
      max_num_shards=cls.NUM_EMBEDDING_SHARDS,
      params_init=_InitOfShards(cls.NUM_EMBEDDING_SHARDS),
    )
    p.lm.embedding_dropout_keep_prob = 0.75
    p.lm.rnns.dropout.keep_prob = 0.75
    p.train.Set(
      learning_rate=0.2,
      lr_schedule=schedule.PiecewiseConstantSchedule.Params().Set(
        boundaries=[], values=[1.0]
      ),
      optimizer=optimizer.Adagrad.Params(),
      sum_loss_across_tokens_in_batch=True,
      # Only the gradients of the LSTMs are clipped.
      max_lstm_gradient_norm=16,
      clip_gradient_norm_to_value=0.0,
      grad_norm_to_clip_to_zero=0.0,
      l2_regularizer_weight=None,
    )
    p.eval.samples_per_summary = 10000
    return p


@model_registry.RegisterSingleTaskModel
class WordLevelOneBwdsSimpleSampledSoftmax(WordLevelOneBwdsBase):
  """A word LSTM of 1.8 billion parameters, trained with a sampled softmax."""

  @classmethod
  def Task(cls):
    """Returns the LSTM with a sampled softmax in training."""
    p = super().Task()
    p.lm.softmax = layers.SimpleFullSoftmax.Params().Set(
      input_dim=p.lm.softmax.input_dim,
      num_classes=cls.VOCAB_SIZE,
      num_sampled=cls.NUM_SAMPLED,
      num_shards=cls.NUM_SOFTMAX_SHARDS,
      params_init=_InitOfShards(cls.NUM_SOFTMAX_SHARDS),
    )
    return p


@model_registry.RegisterSingleTaskModel
class WordLevelOneBwdsSimpleSampledSoftmaxTiny(
  WordLevelOneBwdsSimpleSampledSoftmax
):
  """A tiny WordLevelOneBwdsSimpleSampledSoftmax, for trying it out."""

  EMBEDDING_DIM = 7
  RNN_STATE_DIM = 32
  NUM_EMBEDDING_SHARDS = 1
  NUM_SAMPLED = 8


@model_registry.RegisterSingleTaskModel
class OneBWdsGPipeTransformerWPM(WordLevelOneBwdsBase):
  """A Transformer of 1.7 billion parameters, pipelined over four devices."""

  VOCAB_SIZE = 32000
  BATCH_SIZE = 32
  EMBEDDING_DIM = 2048
  # End of each pipeline stage, as a layer index.
  SPLITS = (8, 16, 24, 32)
  LAYERS = 32
  NUM_MICRO_BATCHES = 32

  @classmethod
  def _Input(cls, name, files):
    return (
      super()
      ._Input(name, files)
      .Set(
        tokenizer=tokenizers.AsciiTokenizer.Params().Set(
          vocab_size=cls.VOCAB_SIZE
        ),
        bucket_upper_bound=[cls.MAX_TOKENS],
        fixed_input_shape=True,
      )
    )

  @classmethod
  def Train(cls):
    """Returns 99 shards of the corpus, in batches of one shape."""
    return super().Train().Set(bucket_batch_limit=[cls.BATCH_SIZE])

  @classmethod
  def _HeldOut(cls, name, shard, num_samples):
    return (
      super()
      ._HeldOut(name, shard, num_samples)
      .Set(
        bucket_batch_limit=[cls.BATCH_SIZE],
        file_buffer_size=10_000_000,
        file_parallelism=10,
      )
    )

  @classmethod
  def Task(cls):
    """Returns the pipelined Transformer, trained with Adam."""
    p = model.BatchMajorLanguageModel.Params().Set(name='1bwds_wpm_level_lm')
    p.lm = lm_layers.GPipeTransformerLm.CommonParams(
      vocab_size=cls.VOCAB_SIZE,
      model_dim=cls.EMBEDDING_DIM,
      hidden_dim=4 * cls.EMBEDDING_DIM,
      num_heads=16,
      num_layers=cls.LAYERS,
      splits=list(cls.SPLITS),
      num_micro_batches=cls.NUM_MICRO_BATCHES,
      micro_batch_size=cls.BATCH_SIZE // cls.NUM_MICRO_BATCHES,
      softmax_max_alloc=128 * 2**20,
      # CommonParams ignores these: the model has no dropout.
      atten_dropout_prob=0.1,
      residual_dropout_prob=0.1,
    )
    p.train.Set(
      learning_rate=0.5,
      lr_schedule=schedule.TransformerSchedule.Params().Set(
        warmup_steps=40_000, model_dim=cls.EMBEDDING_DIM
      ),
      optimizer=optimizer.Adam.ParamsA(),
      clip_gradient_norm_to_value=0.0,
      grad_norm_to_clip_to_zero=0.0,
    )
    p.eval.samples_per_summary = 0
    return p


def _InitOfShards(count):
  """Returns the initializer of a table with `count` shards."""
  return py_utils.WeightInit.UniformUnitScaling(float(count))
