"""Kernels of attention over few tokens, without a scale: out = softmax(q k^T) v, all products in float32.

q, k and v lie together, (samples, T, heads, 3 D). Every program holds the scores of BLOCK tokens with all others, so
that no sum is spread over programs. `lse` (samples, heads, T) is the logarithm of the sum of the exponentials of a
query's scores, from which the gradients compute the weights again. TP and DP are T and D padded.
"""

import triton
import triton.language as tl


@triton.jit
def token_rows(qkv, sample, head, token, part, T, H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr):
    """Return rows of q (part 0), k (1) or v (2) of one head, (tokens, DP), zeros in the padding, and their offsets."""
    column = tl.arange(0, DP)
    place = ((sample * T + token) * (H * 3 * D) + head * 3 * D + part * D)[:, None] + column[None, :]
    keep = (token < T)[:, None] & (column < D)[None, :]
    return tl.load(qkv + place, mask=keep, other=0.0), place, keep


@triton.jit
def output_rows(out, sample, head, token, T, H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr):
    """Return the places of the output of one head, (tokens, DP), of which those that `keep` has exist."""
    column = tl.arange(0, DP)
    place = ((sample * T + token) * (H * D) + head * D)[:, None] + column[None, :]
    return out + place, (token < T)[:, None] & (column < D)[None, :]


@triton.jit
def attend(
    qkv, out, lse, T,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the output and `lse` of BLOCK queries."""
    sample, head = tl.program_id(0), tl.program_id(1)
    query, key = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, TP)
    q, _, _ = token_rows(qkv, sample, head, query, 0, T, H, D, DP)
    k, _, _ = token_rows(qkv, sample, head, key, 1, T, H, D, DP)
    v, _, _ = token_rows(qkv, sample, head, key, 2, T, H, D, DP)
    scores = tl.where((key < T)[None, :], tl.dot(q, tl.trans(k), input_precision="ieee"), float("-inf"))
    most = tl.max(scores, axis=1)
    weight = tl.exp(scores - most[:, None])
    total = tl.sum(weight, axis=1)
    place, keep = output_rows(out, sample, head, query, T, H, D, DP)
    tl.store(place, tl.dot(weight / total[:, None], v, input_precision="ieee"), mask=keep)
    tl.store(lse + (sample * H + head) * T + query, most + tl.log(total), mask=query < T)


@triton.jit
def query_gradient(
    qkv, lse, output_gradient, gradient, share, T,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dL/dq of BLOCK queries, and `share` = sum over keys of w dL/dw, which dL/dk needs."""
    sample, head = tl.program_id(0), tl.program_id(1)
    query, key = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, TP)
    q, at, exists = token_rows(qkv, sample, head, query, 0, T, H, D, DP)
    k, _, _ = token_rows(qkv, sample, head, key, 1, T, H, D, DP)
    v, _, _ = token_rows(qkv, sample, head, key, 2, T, H, D, DP)
    place, keep = output_rows(output_gradient, sample, head, query, T, H, D, DP)
    arriving = tl.load(place, mask=keep, other=0.0)
    row = (sample * H + head) * T + query
    level = tl.load(lse + row, mask=query < T, other=float("inf"))
    weight = tl.exp(tl.dot(q, tl.trans(k), input_precision="ieee") - level[:, None])
    weight = tl.where((key < T)[None, :], weight, 0.0)
    of_weight = tl.dot(arriving, tl.trans(v), input_precision="ieee")
    shared = tl.sum(weight * of_weight, axis=1)
    of_score = weight * (of_weight - shared[:, None])
    tl.store(gradient + at, tl.dot(of_score, k, input_precision="ieee"), mask=exists)
    tl.store(share + row, shared, mask=query < T)


@triton.jit
def key_value_gradient(
    qkv, lse, output_gradient, gradient, share, T,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dL/dk and dL/dv of BLOCK keys; scores stand with keys in rows here."""
    sample, head = tl.program_id(0), tl.program_id(1)
    key, query = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, TP)
    q, _, _ = token_rows(qkv, sample, head, query, 0, T, H, D, DP)
    k, key_at, exists = token_rows(qkv, sample, head, key, 1, T, H, D, DP)
    v, value_at, _ = token_rows(qkv, sample, head, key, 2, T, H, D, DP)
    place, keep = output_rows(output_gradient, sample, head, query, T, H, D, DP)
    arriving = tl.load(place, mask=keep, other=0.0)
    row = (sample * H + head) * T + query
    level = tl.load(lse + row, mask=query < T, other=float("inf"))
    shared = tl.load(share + row, mask=query < T, other=0.0)
    weight = tl.exp(tl.dot(k, tl.trans(q), input_precision="ieee") - level[None, :])
    of_weight = tl.dot(v, tl.trans(arriving), input_precision="ieee")
    of_score = weight * (of_weight - shared[None, :])
    tl.store(gradient + key_at, tl.dot(of_score, q, input_precision="ieee"), mask=exists)
    tl.store(gradient + value_at, tl.dot(weight, arriving, input_precision="ieee"), mask=exists)
