"""Names of Pax that are left out, each with the reason.

A name is that of a module's attribute or of a class's, such as
`praxis.base_layer.BaseLayer.quantize_weight`.
"""

_REASONS = {
  'it is an alias for annotations; use the type itself': """
    praxis.base_layer.BaseLayerT praxis.base_layer.TAxisMetadata
    praxis.base_hyperparams.BaseHyperParamsSelf
    praxis.base_hyperparams.BaseParameterizableSelf
    praxis.base_hyperparams.FiddleBaseParameterizableSelf
    paxml.base_experiment.BaseExperimentT
    paxml.experiment_registry.BaseExperimentT
    praxis.optimizers.TransformInitPartitionSpecFn
    praxis.pytypes.typed praxis.pytypes.JaxArrayT.types
    praxis.pytypes.ArrayT.types
    """,
  'it is an import of another module; use that module': """
    praxis.base_layer.FLAGS praxis.base_hyperparams.tf
    praxis.optimizers.NestedHParams
    praxis.optimizers.distributed_shampoo_optimizer
    paxml.learners.NestedBool paxml.sgf.ScalarFloat
    """,
  'layers are shared by their template or shared_weight_layer_id': """
    praxis.base_layer.instantiate_layer
    praxis.base_layer.JaxContext.lookup_shared_layer
    praxis.base_layer.JaxContext.set_shared_layer
    """,
  'layers do not write their configs among the variables; use'
  ' `layer.hparams`': """
    praxis.base_layer.HYPER_PARAMS praxis.base_layer.WrappedHParams
    praxis.base_layer.JaxContext.self_reflect_configs
    praxis.base_layer.BaseLayer.reflect_configs
    """,
  'use `BaseLayer.theta`': 'praxis.base_layer.ThetaDescriptor',
  'use `FiddleBaseParameterizable`, and its fields': """
    praxis.base_hyperparams.FiddleHParamsClassStub
    praxis.base_hyperparams.OverrideSubConfigFieldProtocol
    praxis.base_hyperparams.SubConfigFactory
    """,
  'it is a part of how Pax builds configs; use `instantiate`': """
    praxis.pax_fiddle.DoNotBuild praxis.pax_fiddle.FieldMetadata
    praxis.pax_fiddle.field_metadata praxis.pax_fiddle.TemplateWrapper
    praxis.pax_fiddle.wrap_templates
    praxis.pax_fiddle.copy_inheritable_base_layer_params
    praxis.pax_fiddle.build_with_empty_flax_module_stack
    praxis.pax_fiddle.empty_flax_module_stack
    """,
  'pmap is not supported': """
    praxis.py_utils.pmap_use_tensorstore
    praxis.py_utils.convert_fully_replicated_array_to_pmap_array
    praxis.py_utils.convert_host_local_array_to_global_array
    """,
  "it is Lingvo's; import it from lingvo.core": """
    praxis.py_utils.current_cluster praxis.py_utils.infeed_context_scope
    praxis.pytypes.InstantiableParams
    """,
  'DistributedShampoo keeps its state in `DistributedShampooState`': """
    praxis.optimizers.Preconditioner praxis.optimizers.QuantizedValue
    praxis.optimizers.ShardedShampooStats praxis.optimizers.ShampooState
    praxis.optimizers.TrainingMetrics
    praxis.optimizers.LocalShardedParameterStats
    praxis.optimizers.GlobalShardedParameterStats
    """,
  'the state of an optimizer is split like its weights': """
    praxis.optimizers.count_init_partition_spec_fn
    praxis.optimizers.ShardedDistributedShampoo.init_partition_spec_fn
    """,
  'use the optimizer of this name, or transformations of optax': """
    praxis.optimizers.sharded_sgd praxis.optimizers.sharded_adagrad
    praxis.optimizers.sharded_adam praxis.optimizers.sharded_lion
    praxis.optimizers.sharded_adafactor praxis.optimizers.Optimizer
    praxis.optimizers.sharded_static_accumulation
    praxis.optimizers.ShardedAdafactorState praxis.optimizers.to_quantized
    praxis.optimizers.to_float praxis.optimizers.adafactor_decay_rate_adam
    praxis.optimizers.adafactor_decay_rate_pow
    praxis.optimizers.ShardedStaticAccumulator.base_optimizer
    """,
  'set the field of the optimizer, which the learner applies': """
    praxis.optimizers.apply_lp_regularizer
    praxis.optimizers.apply_decoupled_weight_decay
    praxis.optimizers.apply_ema_weights
    praxis.optimizers.apply_ewc_regularization
    """,
  'it is not a field, but something that an object computes': """
    praxis.schedules.Exponential.linear praxis.schedules.DelayedCosine.linear
    praxis.schedules.DelayedCosine.max praxis.schedules.DelayedCosine.min
    praxis.schedules.LinearRampupPiecewiseConstant.p0
    praxis.schedules.LinearRampupPiecewiseConstant.p1
    praxis.schedules.ContinuousSchedule.exp
    paxml.base_metrics.CompositeMetrics.metrics_calcs
    """,
  'the optimizer of each weight is in `state.optimizer`, by name': """
    paxml.learners.MultiOptimizerLearner.get_masks
    paxml.learners.MultiOptimizerLearner.scale_gradients_by_optimizer
    """,
  'programs are fixed; an experiment that defines it is refused': """
    paxml.base_experiment.BaseExperiment.decode_programs
    paxml.base_experiment.BaseExperiment.eval_programs
    paxml.base_experiment.BaseExperiment.executor
    paxml.base_experiment.BaseExperiment.partitioner
    paxml.base_experiment.BaseExperiment.train_programs
    """,
  'the trainer writes what `finalize` returns': """
    paxml.base_metrics.BaseMetrics.summarize
    """,
  'pmap is not supported; use `DpSgdStochasticGradient`': """
    paxml.sgf.PercoreClippedDpSgdGradient
    """,
}

# The reason, by name.
REASONS: dict[str, str] = {
  name: reason for reason, names in _REASONS.items() for name in names.split()
}
