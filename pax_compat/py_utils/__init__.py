"""Functions for arrays, trees, devices and time, under Pax's names.

`asserts` and `pytypes` of Pax are modules of this package.
"""

from pax_compat.nested_map import NestedMap  # noqa: F401
from pax_compat.py_utils.devices import (  # noqa: F401
  create_device_mesh,
  get_global_input_shape_dtype,
  get_uneven_sharding_paddings,
  global_mesh_defined,
  is_mock_tpu_backend,
  is_tpu,
  make_array,
  maybe_pad_uneven_sharding,
  maybe_slice_uneven_sharding,
  maybe_unreplicate_for_first_shard,
  maybe_unreplicate_for_fully_replicated,
  put_to_devices,
  set_globally_use_rbg_prng_key,
  sync_global_devices,
  with_sharding_constraint,
)
from pax_compat.py_utils.pytypes import (  # noqa: F401
  JTensor,
  Nested,
)
from pax_compat.py_utils.running import (  # noqa: F401
  ENUM_PROVENANCE_KEYS,
  INDEX_WITHIN_SHARD_KEY,
  NUM_SHARDS_KEY,
  PROVENANCE_PREFIX,
  SHARD_INDEX_KEY,
  RunningPeriod,
  ThreadLocalStack,
  benchmark,
  get_enumeration_id,
  logging_verbosity_level,
  sharded_file_pattern_to_glob,
  timeit,
)
from pax_compat.py_utils.sequences import (  # noqa: F401
  append_eos,
  apply_mask_to_logits,
  apply_padding,
  combine_inner_and_outer_batches,
  concat_sequences_with_padding,
  flip_sequence,
  get_large_negative_number,
  l2_normalize,
  pad_or_trim_to,
  reshape_with_outer_batch_size,
  reshard,
  sequence_mask,
  sequence_paddings,
  tree_unstack,
  unshard,
)
from pax_compat.py_utils.trees import (  # noqa: F401
  BpropMaskedNode,
  Patterns,
  assert_same_shape_and_dtype,
  concat_nested_maps,
  extract_keys,
  extract_prefixed_keys_from_nested_map,
  filter_by_matching_keys,
  is_bprop_masked_node,
  is_optax_masked_node,
  match_variable_names,
  merge_dict,
  select_nodes_by_indices,
  total_num_vars,
  update_matched_variables,
)
