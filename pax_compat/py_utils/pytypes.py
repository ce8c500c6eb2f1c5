"""Names of types, for annotations."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from clu import metrics as clu_metrics

from pax_compat.config import Config
from pax_compat.nested_map import NestedMap

T = TypeVar('T')

JTensor = jax.Array
PRNGKey = jax.Array
NpTensor = np.ndarray
PyTreeDef = jax.tree_util.PyTreeDef
JTensorOrPartitionSpec = jax.Array | jax.sharding.PartitionSpec
SummaryDict = NestedMap | dict[str, JTensor]

HParamsT = Config

Nested = T | tuple[Any, ...] | list[Any] | dict[str, Any] | NestedMap
NestedJTensor = Nested[JTensor]
NestedNpTensor = Nested[NpTensor]
NestedBool = Nested[bool]
NestedInt = Nested[int]
NestedHParams = Nested[HParamsT]
NestedPartitionSpec = Nested[jax.sharding.PartitionSpec]
NestedJTensorOrPartitionSpec = Nested[JTensorOrPartitionSpec]
NestedShapeDtypeStruct = Nested[jax.ShapeDtypeStruct]
NestedShapedArray = Nested[jax.core.ShapedArray]
NestedShapeDtypeLike = (
  NestedJTensor | NestedNpTensor | NestedShapeDtypeStruct | NestedShapedArray
)

DimShardingAnnotation = Sequence[int | str] | int | str | None
SplitDimsMapping = Sequence[DimShardingAnnotation] | None
LogicalAxisRules = Sequence[tuple[str, str | None]]

WeightedScalar = tuple[JTensor, JTensor]
WeightedScalars = dict[str, WeightedScalar] | NestedMap
WeightedScalarsList = dict[str, Sequence[WeightedScalar]] | NestedMap
Metrics = NestedMap | dict[str, clu_metrics.Metric]

DotGeneralT = Callable[..., jax.Array]

# Pax checks these at run time with jaxtyping; here they only annotate.
JaxArrayT = jax.Array | jax.ShapeDtypeStruct
ArrayT = JaxArrayT | np.ndarray
AnyJaxArray = JaxArrayT
AnyNPArray = np.ndarray
AnyArray = ArrayT
AnyPyTreeArray = Any
AnyFloatArray = ArrayT
AnyIntArray = ArrayT
Scalar = ArrayT | np.generic
ScalarInt = Scalar
ScalarFloat = Scalar
