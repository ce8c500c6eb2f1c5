"""The choice of the kernel of dot-product attention.

| kernel | where | what it does not support |
|---|---|---|
| plain | everywhere | nothing: matrix products by blocks of targets |
| splash | TPU | see `splash_attention.unsupported` |
| cudnn | NVIDIA GPU | logit cap, extra logit, dropout, bias |
| xla | TPU, GPU | logit cap, extra logit, dropout |

`auto` takes splash attention on a TPU and cuDNN's flash attention on an NVIDIA
GPU where they can be used, or else `xla`, or else `plain`. What is chosen is
logged once.
"""

import contextlib
import contextvars
import enum

import jax
import jax.numpy as jnp
from absl import logging

from pax_compat import errors
from pax_compat.config_core import context_values
from pax_compat.layer_core import flop_scopes, sharding
from pax_compat.layers.attentions import attention_ops, splash_attention
from pax_compat.layers.attentions.attention_masks import as_array
from pax_compat.layers.attentions.attention_ops import (
  AttentionInputs,
  AttentionOptions,
)

_chosen = contextvars.ContextVar('chosen_attention_kernels', default=None)
_logged: set[str] = set()


@enum.unique
class AttentionKernel(enum.StrEnum):
  """Names of the kernels.

  Attributes:
    AUTO: the fastest that supports the device and the options.
    PLAIN: matrix products.
    SPLASH: splash attention. It is an error if it does not support the options;
      on devices that are not TPUs it is emulated, slowly.
  """

  AUTO = 'auto'
  PLAIN = 'plain'
  SPLASH = 'splash'


def dot_product_attention(
  inputs: AttentionInputs,
  options: AttentionOptions = attention_ops.DEFAULT_OPTIONS,
) -> jax.Array:
  """Attends with the kernel of `options`; returns [B, T, N, H].

  Raises:
    UserError: the kernel is unknown, or it does not support the options.
  """
  platform = sharding.platform()
  if options.kernel == AttentionKernel.SPLASH:
    return _forced_splash(inputs, options, emulated=platform != 'tpu')
  is_plain = options.kernel == AttentionKernel.PLAIN or platform == 'cpu'
  if is_plain or flop_scopes.is_counting():
    return attention_ops.attend(inputs, options)
  why = ''
  if platform == 'tpu':
    why = splash_attention.unsupported(inputs, options)
    if not why:
      return _splash(inputs, options)
  if not _is_fused(inputs, options):
    _record('plain', inputs, why)
    return attention_ops.attend(inputs, options)
  return _library_attention(inputs, why)


def check(kernel: str, *, where: str):
  """Raises a UserError if the kernel is unknown.

  Args:
    kernel: an `AttentionKernel` or its name.
    where: prefix of the message.
  """
  known = [one.value for one in AttentionKernel]
  if kernel not in known:
    raise errors.UserError(
      f'{where}: unknown attention kernel {kernel!r}'
      f'{errors.did_you_mean(str(kernel), known)}; expected'
      f' {", ".join(known)}'
    )


def takes_segments(kernel: str) -> bool:
  """Whether masks of packed rows may be given as a `SegmentMask`.

  A kernel that does not take segment ids makes the mask from them. That differs
  for padding only: as a segment, padding attends to itself.

  Args:
    kernel: an `AttentionKernel` or its name.
  """
  if kernel == AttentionKernel.SPLASH:
    return True
  return (
    kernel == AttentionKernel.AUTO
    and sharding.platform() == 'tpu'
    and not flop_scopes.is_counting()
  )


def recording() -> contextlib.AbstractContextManager[set[str]]:
  """Collects descriptions of the kernels that are chosen within it."""
  found: set[str] = set()
  return context_values.set_within(_chosen, found)


def _record(kernel: str, inputs: AttentionInputs, why_not_splash: str = ''):
  """Logs which kernel is used, and why it is not splash attention."""
  size, heads, dims = inputs.query.shape[1:]
  text = f'{kernel}, for {size} targets and {heads} heads of {dims} dims'
  if why_not_splash:
    text += f'; splash attention does not support {why_not_splash}'
  found = _chosen.get()
  if found is not None:
    found.add(text)
  if text not in _logged:
    _logged.add(text)
    logging.info('attention kernel: %s', text)


def _splash(inputs: AttentionInputs, options: AttentionOptions, **kwargs):
  _record('splash', inputs)
  return splash_attention.attend(inputs, options, **kwargs)


def _forced_splash(inputs, options, *, emulated: bool) -> jax.Array:
  if flop_scopes.is_counting():
    return attention_ops.attend(inputs, options)
  why = splash_attention.unsupported(inputs, options)
  if why:
    raise errors.UserError(
      f"attention_kernel='splash': splash attention does not support {why};"
      " expected 'auto' or 'plain'"
    )
  return _splash(inputs, options, interpret=emulated)


def _is_fused(inputs: AttentionInputs, options: AttentionOptions) -> bool:
  """Whether `jax.nn.dot_product_attention` has what the options ask for."""
  return (
    options.logit_cap <= 0
    and options.extra_logit is None
    and options.dropout is None
    and inputs.query.dtype == inputs.key.dtype == inputs.value.dtype
  )


def _library_attention(inputs: AttentionInputs, why: str) -> jax.Array:
  """Attends with `jax.nn.dot_product_attention`."""
  query, key, value, mask, bias, causal = inputs
  mask, kernel = as_array(mask), 'xla'
  if bias is None and _flash_attention_fits(query, key):
    kernel, why = 'cudnn', ''
    if mask is not None:
      targets, sources = query.shape[1], key.shape[1]
      mask = jnp.broadcast_to(mask, (*mask.shape[:2], targets, sources))
  _record(kernel, inputs, why)
  return jax.nn.dot_product_attention(
    query,
    key,
    value,
    bias=bias,
    mask=mask,
    is_causal=causal,
    scale=1.0,
    implementation=kernel,
  )


def _flash_attention_fits(query: jax.Array, key: jax.Array) -> bool:
  """Whether cuDNN is available and its flash attention supports the heads."""
  device = jax.devices()[0]
  if 'cuda' not in device.client.platform_version.lower():
    return False
  capability = float(device.compute_capability)
  return flash_attention_fits(query, key, compute_capability=capability)


def flash_attention_fits(
  query: jax.Array, key: jax.Array, *, compute_capability: float
) -> bool:
  """Whether cuDNN's flash attention supports these heads.

  It has gradients of biases for few shapes only, so it is not used with a bias.
  It implements a mask as a bias, for which T and S must be even.

  Args:
    query: [B, T, N, H].
    key: [B, S, K, H].
    compute_capability: compute capability of the NVIDIA GPU.
  """
  return (
    compute_capability >= 8.0
    and query.dtype in (jnp.bfloat16, jnp.float16)
    and query.dtype == key.dtype
    and query.shape[-1] % 8 == 0
    and query.shape[-1] <= 128
    and query.shape[1] % 2 == 0
    and key.shape[1] % 2 == 0
  )
