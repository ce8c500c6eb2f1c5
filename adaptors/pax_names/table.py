"""Which of our modules and names those of Pax stand for.

`praxis.layers.a` stands for `pax_compat.layers.a` without a row here, if that
exists; all other layers follow, so that a class is found in whichever module of
Pax it is asked for. `praxis.a` stands for `pax_compat.a`, if it is in `_PRAXIS`
or has a row, and `paxml.a` likewise.
"""

# Modules that are not in `layers`, by package. Those without a row below have
# the same name in `pax_compat`, or nothing here.
_PRAXIS = """
asserts base_hyperparams base_input base_layer base_model beam_search
decoder_hparams decoder_utils fiddle_tags flat_beam_search flax_utils
gshard_utils layers lazy_loader lingvo_lib metric_utils
optimizer_prefix_vectorization optimizers pax_fiddle py_utils pytypes
sample_decode schedules test_utils token_samplers trees contrib contrib.gpu
contrib.gpu.scripts_gpu contrib.gpu.scripts_gpu.lora_layers
contrib.gpu.scripts_gpu.models
""".split()

_LAYERS = """
activations adapters attentions augmentations base_ops bregman chain
checkpoint_policy chunk conformers convolutions ctc_objectives einsum
embedding_softmax flax_adapter frnn glam gpu_fast_attention grok
grouped_query_attention injection injection.fp8_nvidia_gpu linears losses
mobilenet models multi_query_attention ngrammer normalizations pipeline poolings
quantization quantization.attentions quantization.conformers
quantization.conv quantization.embedding_softmax quantization.linears
quantization.ngrammer quantization.operations quantization.optimization
quantization.quantization_hparams quantization.quantize
quantization.quantizer quantization.searchable quantization.sparsity
quantization.sparsity.sparsifier quantization.sparsity.sparsity
quantization.sparsity.sparsity_hparams quantization.sparsity.sparsity_modes
quantization.sub_channels
quantization.transformers quantization.transformer_models quantization.utils
quantizer quantizer_objectives repeats resnets rnn_cell searchable sedd
sequential sharding spectrum_augmenter ssm ssm_transformers stats stochastics
test_layers transformer_models transformers vanillanets video
video.enc_dec_3dcnn video.losses video.quantizer video.vqvae vits
""".split()

_PAXML = """
automl automl_interfaces base_executor base_experiment base_inference_runner
base_metrics base_task checkpoint_creators checkpoint_managers
checkpoint_metadata checkpoint_paths checkpoint_types checkpoint_version
checkpoints contrib decode_programs eval_lib executors experiment_registry
experiment_utils experimental experimental.baseline_experiment
experimental.nested_map_config_helper ghostnorm ghostnorm.base
ghostnorm.embedding ghostnorm.generic_wrapper ghostnorm.linears host_callback
io_utils learners
main metric_utils parameterized_experiment partitioning profiling programs
seqio_input setup_jax sgf summary_utils tasks tasks.lm tasks.lm.input_generator
tasks.lm.model_params tasks.lm.params tasks.test tasks.vision
tasks.vision.input_generator tasks.vision.params tasks_lib test_helper
tf_data_service_lib tools train train_states trainer_lib tuning_lib
xla_passthrough
""".split()

# All modules of Pax that can be imported, whether or not there is something
# here for them.
KNOWN = frozenset(
  {'praxis', 'paxml'}
  | {f'praxis.{name}' for name in _PRAXIS}
  | {f'praxis.layers.{name}' for name in _LAYERS}
  | {f'paxml.{name}' for name in _PAXML}
)

# Modules of experiments that are not here, only in a checkout of paxml.
IN_CHECKOUTS = frozenset({'bert', 'nvidia', 'optimal_scaling', 'synthetic'})

_OWN = 'adaptors.pax_names.own'
_HOST_ROWS = 'adaptors.seqio_input.reading.host_rows'

# Modules in which names are looked up, in this order, after the one of the same
# name in `pax_compat`. Those that do not exist are skipped.
MODULES: dict[str, tuple[str, ...]] = {
  'praxis.asserts': ('pax_compat.py_utils.asserts',),
  'praxis.base_input': (
    f'{_OWN}.lingvo_inputs',
    'adaptors.lingvo_input.input_adaptor',
    'adaptors.lingvo_input.eval_adaptors',
  ),
  'praxis.base_model': (
    'pax_compat.py_utils.pytypes',
    f'{_OWN}.type_names',
  ),
  'praxis.base_layer': (
    'pax_compat.config',
    'pax_compat.py_utils.pytypes',
    f'{_OWN}.type_names',
  ),
  'praxis.beam_search': ('pax_compat.decoder_hparams',),
  'praxis.contrib.gpu.scripts_gpu.lora_layers': (
    'pax_compat.layers.adapters.lora_layers',
  ),
  'praxis.contrib.gpu.scripts_gpu.models': (f'{_OWN}.custom_metrics_lm',),
  'praxis.decoder_utils': (
    'pax_compat.decoding.decoder_utils',
    'pax_compat.decoding.state_alignment',
  ),
  'praxis.layers': (
    'pax_compat.layers.attentions.additive_masks',
    'pax_compat.layers.ngrammer',
    'pax_compat.layers.normalizations.moments',
    'pax_compat.layers.quantizer',
    f'{_OWN}.array_functions',
    f'{_OWN}.transformer_masks',
  ),
  'praxis.layers.attentions': (
    'pax_compat.layers.attentions.additive_masks',
    'pax_compat.layers.attentions.sequence_blocks',
  ),
  'praxis.layers.chunk': ('pax_compat.layers.attentions.sequence_blocks',),
  'praxis.layers.frnn': ('pax_compat.layers.rnn',),
  'praxis.layers.glam': ('pax_compat.layers.transformer_models.glam',),
  'praxis.layers.grok': ('pax_compat.layers.transformer_models.grok',),
  'praxis.layers.linears': (f'{_OWN}.array_functions',),
  'praxis.layers.losses': ('pax_compat.layers.softmaxes',),
  'praxis.layers.models': (f'{_OWN}.type_names',),
  'praxis.layers.normalizations': ('pax_compat.layers.normalizations.moments',),
  'praxis.layers.pipeline': ('pax_compat.layers.pipelines',),
  'praxis.layers.quantization.operations': (
    'pax_compat.layers.quantization.rounding',
    'pax_compat.layers.quantization.sub_channels',
    'pax_compat.layers.quantization.training_products',
  ),
  'praxis.layers.quantization.sparsity.sparsity': (
    f'{_OWN}.sparsity_functions',
  ),
  'praxis.layers.quantizer_objectives': (
    'pax_compat.layers.quantizer.quantizer_objectives',
  ),
  'praxis.layers.rnn_cell': ('pax_compat.layers.rnn',),
  'praxis.layers.sequential': ('pax_compat.layers.graph',),
  'praxis.layers.stats': (f'{_OWN}.array_functions',),
  'praxis.layers.transformers': (f'{_OWN}.transformer_masks',),
  'praxis.layers.video.enc_dec_3dcnn': (f'{_OWN}.array_functions',),
  'praxis.metric_utils': (
    'pax_compat.base_metrics',
    f'{_OWN}.array_functions',
  ),
  'praxis.py_utils': (
    'pax_compat.nested_map',
    'pax_compat.py_utils.pytypes',
    f'{_OWN}.type_names',
  ),
  'praxis.pytypes': (
    'pax_compat.py_utils.pytypes',
    f'{_OWN}.type_names',
  ),
  'praxis.test_utils': (f'{_OWN}.test_utils',),
  'praxis.token_samplers': ('pax_compat.sampling.token_samplers',),
  'praxis.trees': (
    'pax_compat.py_utils.subtrees',
    'pax_compat.py_utils.trees',
  ),
  'paxml.automl': ('pax_compat.tuning.automl',),
  'paxml.base_executor': (f'{_OWN}.programs',),
  'paxml.decode_programs': (f'{_OWN}.programs',),
  'paxml.executors': (f'{_OWN}.programs',),
  'paxml.partitioning': (
    f'{_OWN}.programs',
    'pax_compat.tasks.state_shapes',
  ),
  'paxml.programs': (f'{_OWN}.programs',),
  'paxml.automl_interfaces': ('pax_compat.tuning.automl',),
  'paxml.base_task': ('pax_compat.tasks_lib',),
  'paxml.checkpoint_paths': (f'{_OWN}.checkpoint_paths',),
  'paxml.checkpoint_types': (f'{_OWN}.checkpoint_paths',),
  'paxml.checkpoints': (f'{_OWN}.checkpoints',),
  'paxml.experimental.baseline_experiment': (f'{_OWN}.baseline_experiment',),
  'paxml.experimental.nested_map_config_helper': (
    f'{_OWN}.baseline_experiment',
  ),
  'paxml.main': ('pax_compat.main',),
  'paxml.metric_utils': (
    f'{_OWN}.metric_utils',
    'pax_compat.base_metrics',
    'pax_compat.py_utils.pytypes',
  ),
  'paxml.parameterized_experiment': (
    'pax_compat.experiments.parameterized_experiment',
  ),
  'paxml.seqio_input': (
    'adaptors.seqio_input',
    'adaptors.seqio_input.pax_methods',
  ),
  'paxml.sgf': ('pax_compat.learners.sgf',),
  'paxml.tasks_lib': (
    'pax_compat.base_inference_runner',
    'pax_compat.tasks.state_shapes',
    'pax_compat.tasks.train_states',
  ),
  'paxml.train_states': ('pax_compat.tasks.train_states',),
  'paxml.trainer_lib': (f'{_OWN}.trainer_lib',),
}

# Single names, as `module:name`. A name with several spellings here is looked
# up in `MODULES` first.
NAMES: dict[str, str] = {
  'praxis.base_hyperparams.BaseParameterizable': (
    f'{_OWN}.parameterizable:BaseParameterizable'
  ),
  'praxis.base_input.MultiInput': 'pax_compat.inputs.multi_input:MultiInput',
  'praxis.base_hyperparams.HParams': 'pax_compat.config:BaseHParams',
  'praxis.base_layer.BaseLayerApi': 'pax_compat.base_layer:BaseLayer',
  'praxis.base_layer.template_field': 'pax_compat.pax_fiddle:template_field',
  'praxis.layers.attentions._make_local_mask': (
    'pax_compat.layers.attentions.sequence_blocks:local_mask'
  ),
  'praxis.layers.attentions.causal_mask': (
    'pax_compat.layers.attentions.additive_masks:causal_mask'
  ),
  'praxis.layers.attentions.segment_mask': (
    'pax_compat.layers.attentions.additive_masks:segment_mask'
  ),
  # Not the module of this name.
  'praxis.layers.chain.chain': (
    'pax_compat.layers.chain.chain_extensions:chain'
  ),
  'praxis.layers.frnn.reset_mask': (
    'pax_compat.layers.rnn.segment_starts:reset_mask'
  ),
  'praxis.layers.grouped_query_attention.attention_mask': (
    f'{_OWN}.grouped_query_masks:attention_mask'
  ),
  'praxis.layers.grouped_query_attention.causal_mask': (
    f'{_OWN}.grouped_query_masks:causal_mask'
  ),
  'praxis.layers.grouped_query_attention.padding_mask': (
    f'{_OWN}.grouped_query_masks:padding_mask'
  ),
  'praxis.layers.grouped_query_attention.segment_mask': (
    f'{_OWN}.grouped_query_masks:segment_mask'
  ),
  'praxis.optimizers.instantiate': 'pax_compat.pax_fiddle:instantiate',
  'praxis.py_utils.InstantiableParams': (
    'lingvo.core.hyperparams:InstantiableParams'
  ),
  'praxis.beam_search.broadcast_beam_dim': (
    'pax_compat.decoding.beams:broadcast_beam_dim'
  ),
  'praxis.beam_search.shuffle_state': (
    'pax_compat.decoding.beams:shuffle_state'
  ),
  'praxis.beam_search.update_global_beam': (
    'pax_compat.decoding.beams:update_global_beam'
  ),
  'praxis.decoder_utils.DUMMY_PRNG_KEY': (
    'pax_compat.sampling.token_samplers:DUMMY_PRNG_KEY'
  ),
  'praxis.flat_beam_search.get_final_output_ids': (
    'pax_compat.decoding.beams:get_final_output_ids'
  ),
  'praxis.flat_beam_search.update_beam_mask': (
    'pax_compat.decoding.beams:update_beam_mask'
  ),
  'praxis.flat_beam_search.update_topk_scores_with_eos': (
    'pax_compat.decoding.beams:update_topk_scores_with_eos'
  ),
  'praxis.sample_decode.BaseLogitsSampler': (
    'pax_compat.sampling.token_samplers:BaseLogitsSampler'
  ),
  'praxis.sample_decode.BaseNextTokenSampler': (
    'pax_compat.sampling.token_samplers:BaseNextTokenSampler'
  ),
  'praxis.sample_decode.DefaultCategoricalLogitsSampler': (
    'pax_compat.sampling.token_samplers:DefaultCategoricalLogitsSampler'
  ),
  'praxis.sample_decode.DefaultNextTokenSampler': (
    'pax_compat.sampling.token_samplers:DefaultNextTokenSampler'
  ),
  'praxis.sample_decode.BaseSampleTerminationConstraint': (
    'pax_compat.decoding.sample_decode:BaseSampleTerminationConstraint'
  ),
  **{
    f'praxis.sample_decode.{name}': f'pax_compat.decoding.pax_sampling:{name}'
    for name in (
      'greedy_decode',
      'sample_decode',
      'sample_decode_after_fprop',
      'vanilla_sample_decode',
    )
  },
  'praxis.sample_decode.MAX_NUM_PER_TOKEN_LOGPROBS': (
    'pax_compat.decoding.sample_steps:MAX_NUM_PER_TOKEN_LOGPROBS'
  ),
  'praxis.sample_decode.split_batch_dim': (
    'pax_compat.decoding.sample_steps:split_batch_dim'
  ),
  'praxis.sample_decode.sort_samples_by_scores': (
    'pax_compat.decoding.sample_decode:sort_samples_by_scores'
  ),
  'praxis.sample_decode.reorder_with_indices': (
    'pax_compat.decoding.beam_search:shuffle'
  ),
  'praxis.sample_decode.right_align_prefix_ids': (
    'pax_compat.decoding.state_alignment:right_align_prefix_ids'
  ),
  'praxis.sample_decode.right_align_segment_position': (
    'pax_compat.decoding.state_alignment:right_align_segment_position'
  ),
  'praxis.token_samplers._apply_top_k_and_top_p': (
    'pax_compat.sampling.token_samplers:apply_top_k_and_top_p'
  ),
  'praxis.token_samplers._get_argmax_ids': (
    'pax_compat.sampling.token_samplers:select'
  ),
  'paxml.base_task.BaseTask': 'pax_compat.tasks_lib:SingleTask',
  'paxml.host_callback.Repository': f'{_OWN}.host_strings:Repository',
  'paxml.host_callback.repository': f'{_OWN}.host_strings:repository',
  'paxml.seqio_input.INDEX_WITHIN_SHARD_KEY': f'{_HOST_ROWS}:INDEX',
  'paxml.seqio_input.NUM_SHARDS_KEY': f'{_HOST_ROWS}:SHARDS',
  'paxml.seqio_input.SHARD_INDEX_KEY': f'{_HOST_ROWS}:SHARD',
  'paxml.tasks.lm.input_generator.SyntheticLmData': (
    f'{_OWN}.synthetic_lm_data:SyntheticLmData'
  ),
  'paxml.test_helper.test_src_dir_path': (
    'adaptors.pax_names.checkout:test_src_dir_path'
  ),
  'paxml.xla_passthrough.merge_back_xla_unsupported_batch': (
    f'{_OWN}.host_strings:merge_back_xla_unsupported_batch'
  ),
  'paxml.xla_passthrough.split_out_xla_unsupported_batch': (
    f'{_OWN}.host_strings:split_out_xla_unsupported_batch'
  ),
}

# Modules of another package, which Pax's experiments import; used where it is
# not installed. Names are looked up in these modules.
STAND_INS: dict[str, tuple[str, ...]] = {
  't5': (),
  't5.data': (f'{_OWN}.t5_data', 'seqio'),
  't5.data.preprocessors': (
    'adaptors.seqio_input.preprocessors',
    'seqio.preprocessors',
  ),
}

# Names that Pax's modules import or assign from others, which code reads from
# any of them. All are in `praxis.base_layer`.
ALIASES = frozenset(
  """
  AUX_LOSS DECODE_CACHE INTERMEDIATES JTensor LayerTpl Metrics Nested NestedInt
  NestedJTensor NestedMap NestedPartitionSpec NestedShapeDtypeLike
  NestedShapeDtypeStruct NestedWeightHParams NON_TRAINABLE PARAMS
  PMAP_PARALLEL_AXIS_NAME PREFIX_DECODE_CACHE PRNGKey RANDOM SplitDimsMapping
  SUMMARIES SummaryType WeightHParams WeightInit WeightedScalars
  WeightedScalarsList instance_field instantiate template_field
  """.split()
)

_CHECKPOINTS = (
  'use paxml.checkpoints.save_checkpoint and restore_checkpoint, or'
  ' pax_compat.checkpoints; docs/warm_start.md loads checkpoints of Pax'
)
_SUMMARIES = (
  'use add_summary of a layer, which the trainer writes; a loop of your own'
  ' writes with pax_compat.metrics.metric_writers.MetricWriter'
)
_CHECK = 'use pax_compat.main with --check, and config.txt of a run'
_CUDNN = 'attention uses cuDNN without it where that can; see docs/gpu.md'

# What to use instead of a module or name that is not here, or of all in a
# module without a row of their own.
INSTEAD: dict[str, str] = {
  'paxml.base_executor': 'use pax_compat.trainer',
  'paxml.checkpoint_creators': _CHECKPOINTS,
  'paxml.checkpoint_managers': _CHECKPOINTS,
  'paxml.checkpoint_metadata': _CHECKPOINTS,
  'paxml.checkpoint_paths': _CHECKPOINTS,
  'paxml.checkpoint_types': _CHECKPOINTS,
  'paxml.checkpoint_version': _CHECKPOINTS,
  'paxml.checkpoints': _CHECKPOINTS,
  'paxml.decode_programs': 'use pax_compat.main with --mode=decode',
  'paxml.eval_lib': 'use pax_compat.main with --mode=eval',
  'paxml.executors': 'use pax_compat.trainer',
  'paxml.ghostnorm': (
    'layers have ghost norms by themselves, see docs/training.md; a layer of'
    ' your own is wrapped by generate_wrapped_template with force_wrap=True'
  ),
  'paxml.host_callback': 'use jax.pure_callback',
  'paxml.io_utils': 'outputs are JSON lines, in eval_out and decode_out',
  'paxml.io_utils.ShardedParallelWriter': (
    'use pax_compat.runs.example_records.record_writer'
  ),
  'paxml.io_utils.write_key_value_pairs': (
    'use pax_compat.metrics.example_outputs.example_writer, of JSON lines'
  ),
  'paxml.main.get_experiment': 'use paxml.experiment_registry.get',
  'paxml.partitioning': 'use the mesh fields of the model',
  'paxml.profiling': 'use the fields profiler_* of task.train',
  'paxml.programs': 'use pax_compat.trainer',
  'paxml.seqio_input.process_outputs': (
    'use compute_metrics of the input; the trainer writes metrics by itself'
  ),
  'paxml.setup_jax': 'pax_compat.main does it',
  'paxml.summary_utils': _SUMMARIES,
  'paxml.tasks': 'with --pax_source=FOLDER of a checkout of paxml it is',
  'paxml.tf_data_service_lib': 'each host reads its own part of the data',
  'paxml.tools': _CHECK,
  'paxml.train': 'use pax_compat.main',
  'paxml.tuning_lib': 'use --study of pax_compat.main',
  'praxis.fiddle_tags': 'set fields by their paths',
  'praxis.gshard_utils': 'use gating_func of TransformerFeedForwardMoe',
  'praxis.layers.gpu_fast_attention': _CUDNN,
  'praxis.layers.quantization': (
    'docs/quantization.md has what can be quantized'
  ),
  'praxis.layers.searchable': 'use --study of pax_compat.main',
}
