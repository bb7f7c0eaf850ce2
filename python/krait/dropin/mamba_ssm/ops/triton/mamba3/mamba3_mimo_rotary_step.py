"""The rotation of one decoding step in plain torch, under upstream's path. The step of krait turns inside its operator."""

import math

import torch


def _turn(v, angle, conjugate, pairwise):
    """v (B, R, H, N) with its pairs turned by angle (B, H, S): neighbours or halves."""
    s, n = angle.shape[-1], v.shape[-1]
    first = torch.arange(s, device=v.device) * (2 if pairwise else 1)
    second = first + (1 if pairwise else n // 2)
    cosine, sine = torch.cos(angle)[:, None], torch.sin(-angle if conjugate else angle)[:, None]
    i, j = v[..., first], v[..., second]
    turned = v.clone()
    turned[..., first], turned[..., second] = cosine * i - sine * j, sine * i + cosine * j
    return turned


def apply_rotary_qk_inference_reference(q, k, angle_state, angle_proj, dt, bias_q=None, bias_k=None, conjugate=False, rotate_pairwise=True):
    """q, k (B, R, H, N), angles (B, H, S), dt (B, H), biases (R, H, N) -> (q, k, angle_state + pi tanh(angle_proj) dt, not reduced)."""
    if 2 * angle_state.shape[-1] > q.shape[-1]:
        raise ValueError("apply_rotary_qk_inference: %d angles need twice as many columns, got %d" % (angle_state.shape[-1], q.shape[-1]))
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    angle = angle_state.to(wide) + math.pi * torch.tanh(angle_proj.to(wide)) * dt.to(wide)[..., None]
    turned = [_turn(v.to(wide) if bias is None else v.to(wide) + bias.to(wide), angle, conjugate, rotate_pairwise).to(v.dtype)
              for v, bias in ((q, bias_q), (k, bias_k))]
    return turned[0], turned[1], angle.to(angle_state.dtype)


def apply_rotary_qk_inference_fwd(q, k, angle_state, angle_proj, dt, bias_q=None, bias_k=None, inplace=False, conjugate=False, rotate_pairwise=True):
    """The same; inplace writes the results over q, k and angle_state."""
    results = apply_rotary_qk_inference_reference(q, k, angle_state, angle_proj, dt, bias_q, bias_k, conjugate, rotate_pairwise)
    if not inplace:
        return results
    for target, result in zip((q, k, angle_state), results):
        target.copy_(result)
    return q, k, angle_state
