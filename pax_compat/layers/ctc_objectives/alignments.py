"""Alignments of labels to frames by connectionist temporal classification.

The loss is `optax.ctc_loss`, https://www.cs.toronto.edu/~graves/icml_2006.pdf.

Shapes: B batch, T frames, K classes with the blank, N labels. State n is after
the n-th label, state 0 before the first.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass
class CtcAlignments:
  """Alignments of labels to frames, with their log probabilities.

  Attributes:
    alignment: [B, T] int, the state at each frame in the best alignment.
    logalpha_phi: [T, B, N + 1], of the frames so far, in a state and emitting
      no label.
    logalpha_emit: [T, B, N], of the frames so far, emitting a label.
    logbeta_phi: [T, B, N + 1], as `logalpha_phi`, of the frames from the end.
    logbeta_emit: [T, B, N], as `logalpha_emit`, of the frames from the end.
    state_logprobs: [T, B, N + 1], of all frames, of each state.
  """

  alignment: jax.Array
  logalpha_phi: jax.Array
  logalpha_emit: jax.Array
  logbeta_phi: jax.Array
  logbeta_emit: jax.Array
  state_logprobs: jax.Array


def ctc_loss_with_alignments(
  logits: jax.Array,
  logitpaddings: jax.Array,
  labels: jax.Array,
  labelpaddings: jax.Array,
  blank_id: int = 0,
  logepsilon: float = -1e5,
) -> tuple[jax.Array, CtcAlignments]:
  """Returns the loss of each sequence, [B] in nats, and the alignments.

  Args:
    logits: [B, T, K].
    logitpaddings: [B, T].
    labels: [B, N] int.
    labelpaddings: [B, N], padded at the end only.
    blank_id: the class of the blank.
    logepsilon: stands for the logarithm of 0.
  """
  constants = dict(blank_id=blank_id, log_epsilon=logepsilon)
  losses, alpha_phi, alpha_emit = optax.ctc_loss_with_forward_probs(
    logits, logitpaddings, labels, labelpaddings, **constants
  )
  beta_phi, beta_emit = _from_the_end(
    logits, logitpaddings, labels, labelpaddings, constants
  )

  def of_states(phi, emit):
    emit = jnp.pad(emit, [(0, 0)] * 2 + [(1, 0)], constant_values=logepsilon)
    return jnp.logaddexp(emit, phi)

  states = of_states(alpha_phi, alpha_emit) + of_states(beta_phi, beta_emit)
  alignments = CtcAlignments(
    alignment=_best_path(states, logitpaddings, labelpaddings, logepsilon),
    logalpha_phi=alpha_phi,
    logalpha_emit=alpha_emit,
    logbeta_phi=beta_phi,
    logbeta_emit=beta_emit,
    state_logprobs=states,
  )
  return losses, alignments


def _from_the_end(
  logits, logitpaddings, labels, labelpaddings, constants
) -> tuple[jax.Array, jax.Array]:
  """Returns phi and emit of the reversed frames and labels, in order."""
  missing = jnp.sum(labelpaddings, axis=1)
  # Padding has to be at the end of the reversed labels too.
  reversed_labels = _moved_left(jnp.flip(labels, 1), missing, 0)
  _, *found = optax.ctc_loss_with_forward_probs(
    jnp.flip(logits, 1),
    jnp.flip(logitpaddings, 1),
    reversed_labels,
    labelpaddings,
    **constants,
  )
  epsilon = constants['log_epsilon']
  phi, emit = (
    _moved_left(jnp.flip(x, (0, 2)), missing, epsilon) for x in found
  )
  return phi, emit


def _moved_left(x: jax.Array, steps: jax.Array, fill: float) -> jax.Array:
  """Returns x moved left along its last dimension, [..., B, N].

  Args:
    x: [..., B, N].
    steps: [B], number of positions.
    fill: value of the positions that become free.
  """
  size = x.shape[-1]
  sources = jnp.arange(size) + steps.astype(jnp.int32)[:, jnp.newaxis]
  valid = jnp.broadcast_to(sources < size, x.shape)
  sources = jnp.broadcast_to(jnp.minimum(sources, size - 1), x.shape)
  return jnp.where(valid, jnp.take_along_axis(x, sources, axis=-1), fill)


def _best_path(
  states: jax.Array,
  logitpaddings: jax.Array,
  labelpaddings: jax.Array,
  logepsilon: float,
) -> jax.Array:
  """Returns a likely path that emits all labels, [B, T] int.

  The best state of each frame is not always a path. So the frames are passed
  from left to right, and each may take the state before it or the next one, and
  at least the state from which the remaining frames can emit the labels left.

  Args:
    states: [T, B, N + 1], log probabilities.
    logitpaddings: [B, T].
    labelpaddings: [B, N].
    logepsilon: stands for the logarithm of 0.
  """
  frames, rows, size = states.shape
  lengths = frames - jnp.sum(logitpaddings, axis=-1)
  labels = size - 1 - jnp.sum(labelpaddings, axis=-1)
  blanks = (lengths - labels)[:, jnp.newaxis]
  least = jnp.arange(frames) - blanks
  least = jnp.clip(least, 0, labels[:, jnp.newaxis])
  numbers = jnp.arange(size)

  def step(last, frame):
    logprobs, minimum = frame
    first = jnp.maximum(last, minimum)[:, jnp.newaxis]
    possible = (numbers >= first) & (numbers <= last[:, jnp.newaxis] + 1)
    state = jnp.argmax(jnp.where(possible, logprobs, logepsilon), axis=-1)
    return state.astype(last.dtype), state

  start = jnp.zeros([rows], jnp.int32)
  _, path = jax.lax.scan(step, start, (states, least.T))
  return path.T


def is_valid_ctc_seq(
  logitpaddings: jax.Array, labels: jax.Array, labelpaddings: jax.Array
) -> jax.Array:
  """Returns 1 for each sequence with enough frames for its labels, else 0.

  Between equal labels there has to be a blank. Without enough frames the loss
  is a huge number, which should not count.

  Args:
    logitpaddings: [B, T].
    labels: [B, N] int.
    labelpaddings: [B, N].

  Returns:
    [B], float32.
  """
  frames = jnp.sum(1.0 - logitpaddings, axis=-1)
  needed = jnp.sum(1.0 - labelpaddings, axis=-1)
  equal = (labels[:, 1:] == labels[:, :-1]) * (1.0 - labelpaddings[:, 1:])
  return (needed + jnp.sum(equal, axis=-1) <= frames).astype(jnp.float32)


def frame_alignment_to_label_alignment(
  frame_alignment: jax.Array, frame_paddings: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the first frame of each label, and the number of labels.

  >>> import numpy as np
  >>> states = np.array([[0, 0, 1, 1, 2, 0]])
  >>> paddings = np.array([[0, 0, 0, 0, 0, 1]])
  >>> first, count = frame_alignment_to_label_alignment(states, paddings)
  >>> first.tolist(), count.tolist()
  ([[2, 4, 0, 0, 0, 0]], [2])

  Args:
    frame_alignment: [B, T] int, the state at each frame.
    frame_paddings: [B, T].

  Returns:
    The first frames [B, T] int, 0 beyond the labels, and the counts [B] int.
  """
  frames = frame_alignment.shape[1]
  before = jnp.pad(
    frame_alignment[:, :-1], [(0, 0), (1, 0)], constant_values=-1
  )
  begins = (frame_alignment != before) & (frame_alignment != 0)
  begins &= frame_paddings == 0
  first = jnp.where(begins, jnp.arange(frames), frames)
  first = jnp.sort(first, axis=-1)
  return jnp.where(first < frames, first, 0), jnp.sum(begins, axis=-1)


def forced_alignment(
  logits: jax.Array,
  logitpaddings: jax.Array,
  labels: jax.Array,
  labelpaddings: jax.Array,
  blank_id: int = 0,
) -> jax.Array:
  """Returns the first frame of each label in a likely alignment.

  Args:
    logits: [B, T, K].
    logitpaddings: [B, T].
    labels: [B, N] int.
    labelpaddings: [B, N], padded at the end only.
    blank_id: the class of the blank.

  Returns:
    [B, N] int, or [B, T] if T is less; -1 in sequences with too few frames.
  """
  _, found = ctc_loss_with_alignments(
    logits, logitpaddings, labels, labelpaddings, blank_id
  )
  first, _ = frame_alignment_to_label_alignment(found.alignment, logitpaddings)
  valid = is_valid_ctc_seq(logitpaddings, labels, labelpaddings)
  first = jnp.where(valid[:, jnp.newaxis] > 0, first, -1)
  return first[:, : labels.shape[-1]]
