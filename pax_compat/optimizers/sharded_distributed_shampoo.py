"""Pax's DistributedShampoo with sharded matrices."""

from jax.sharding import PartitionSpec

from pax_compat.optimizers.distributed_shampoo import (
  MATRICES,
  DistributedShampoo,
  GraftingType,
)


class ShardedDistributedShampoo(DistributedShampoo):
  """DistributedShampoo with its matrices sharded, as Pax's.

  A step uses the roots from before it. The fields are those of
  DistributedShampoo; a dimension of the matrices that its mesh axis does not
  divide is not sharded.

  Raises:
    UserError: a mapping counts axes, and `mesh_axis_names` is not set or
      shorter.
  """

  _uses_older_roots = True

  def __post_init__(self):
    super().__post_init__()
    self._stored = self._axes('tensor_split_dims_mapping')
    self._computed = self._axes(
      'tensor_split_dims_mapping_for_inverse_pth_root'
    )

  @classmethod
  def HParamsLargeLanguageModeling(cls):  # noqa: N802 (Pax's name)
    """Returns Pax's config for large language models."""
    return cls.config(
      block_size=4096,
      merge_small_dims_block_size=3 * 4096,
      skip_preconditioning_dim_size_gt=6 * 4096,
      graft_type=GraftingType.RMSPROP,
      clip_gradient_norm_to_value=1.0,
      clip_by_scaled_gradient_norm=1.0,
      beta2=0.99,
      weight_decay=0.0005,
      matrix_epsilon=1e-8,
      nesterov=False,
      mesh_axis_names=('replica', 'data', 'mdl'),
      tensor_split_dims_mapping=[-1, 1, 2],
      tensor_split_dims_mapping_for_inverse_pth_root=[1, -1, 2],
      start_preconditioning_step=51,
      preconditioning_compute_steps=50,
      summarize_training_metrics=False,
      moving_average_for_momentum=True,
    )

  def own_spec(self, name, leaf_shape, mesh):
    if name not in MATRICES:
      return super().own_spec(name, leaf_shape, mesh)
    for axis in self._stored:
      self.check(
        axis is None or axis in mesh.shape,
        f'{axis!r} of tensor_split_dims_mapping is not an axis of the mesh,'
        f' {tuple(mesh.shape)}',
      )
    # Sizes of a state must be divisible.
    return PartitionSpec(
      *(
        axis if axis and size % mesh.shape[axis] == 0 else None
        for axis, size in zip(self._stored, leaf_shape, strict=False)
      )
    )

  def _divided_spec(self, mesh):
    del mesh
    return self._computed

  def _axes(self, field: str) -> list[str | None]:
    """Returns the mesh axes [3] of a mapping."""
    names = self.mesh_axis_names or ()

    def axis(entry):
      if isinstance(entry, str):
        return entry
      if not entry or entry == -1:
        return None
      self.check(
        entry < len(names),
        f'{field} has axis {entry}, and mesh_axis_names is'
        f' {self.mesh_axis_names}; expected the names of the axes of the mesh',
      )
      return names[entry]

    return [axis(entry) for entry in getattr(self, field) or [None] * 3]
