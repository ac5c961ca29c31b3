"""A Mixture-of-Experts layer, forward and backward, with six grouped products. Needs no GPU.

Tokens are routed to their experts, sorted by expert, and sent through two grouped linear layers
with SwiGLU between them; then the same backwards. Everything is compared with a plain loop over
experts in float64.

Suffixes name dimensions: T tokens, R routed rows (T times the experts per token), D model,
F hidden, E experts. ``w13_EDF2`` has the gate's columns first, then the up-projection's.

Run it: ``python examples/moe_layer_numpy.py``
"""

from __future__ import annotations

import numpy as np

import gemmjit

TOKENS, MODEL, HIDDEN, EXPERTS, PER_TOKEN = 96, 64, 96, 8, 2
IDLE = 3  # an expert that is switched off, so that its group is empty


def route(x_TD, router_DE):
    """Return each routed row's token and weight, sorted by expert, and the experts' end offsets."""
    logits_TE = x_TD @ router_DE
    logits_TE[:, IDLE] = -np.inf
    chosen_TK = np.argsort(-logits_TE, axis=1, kind="stable")[:, :PER_TOKEN]
    picked_TK = np.exp(np.take_along_axis(logits_TE, chosen_TK, axis=1))
    weights_TK = picked_TK / picked_TK.sum(axis=1, keepdims=True)
    expert_R = chosen_TK.reshape(-1)
    order_R = np.argsort(expert_R, kind="stable")
    offs_E = gemmjit.offsets.from_row_ids(expert_R[order_R], EXPERTS)
    return order_R // PER_TOKEN, weights_TK.reshape(-1)[order_R].astype(x_TD.dtype), offs_E


def swiglu(h_RF2):
    gate, up = np.split(h_RF2, 2, axis=1)
    return gate / (1 + np.exp(-gate)) * up


def swiglu_backward(h_RF2, ds_RF):
    gate, up = np.split(h_RF2, 2, axis=1)
    sigmoid = 1 / (1 + np.exp(-gate))
    dgate = ds_RF * up * sigmoid * (1 + gate * (1 - sigmoid))
    return np.concatenate([dgate, ds_RF * gate * sigmoid], axis=1)


def forward(x_TD, w13_EDF2, w2_EFD, routing):
    token_R, weight_R, offs_E = routing
    x_RD = x_TD[token_R]
    h_RF2 = gemmjit.grouped_mm(x_RD, w13_EDF2, offs=offs_E)  # fprop
    s_RF = swiglu(h_RF2)
    o_RD = gemmjit.grouped_mm(s_RF, w2_EFD, offs=offs_E)  # fprop
    y_TD = np.zeros_like(x_TD)
    np.add.at(y_TD, token_R, weight_R[:, None] * o_RD)
    return y_TD, (x_RD, h_RF2, s_RF)


def backward(dy_TD, w13_EDF2, w2_EFD, routing, saved):
    """Return the gradients of x, w13 and w2; the router is taken as given."""
    token_R, weight_R, offs_E = routing
    x_RD, h_RF2, s_RF = saved
    do_RD = weight_R[:, None] * dy_TD[token_R]
    ds_RF = gemmjit.grouped_mm(do_RD, w2_EFD.mT, offs=offs_E)  # dgrad
    dw2_EFD = gemmjit.grouped_mm(s_RF.T, do_RD, offs=offs_E)  # wgrad
    dh_RF2 = swiglu_backward(h_RF2, ds_RF)
    dx_RD = gemmjit.grouped_mm(dh_RF2, w13_EDF2.mT, offs=offs_E)  # dgrad
    dw13_EDF2 = gemmjit.grouped_mm(x_RD.T, dh_RF2, offs=offs_E)  # wgrad
    dx_TD = np.zeros_like(dy_TD)
    np.add.at(dx_TD, token_R, dx_RD)
    return dx_TD, dw13_EDF2, dw2_EFD


def dense_loop(x, dy, w13, w2, routing):
    """Return the same five results by a loop over experts, in float64 and without gemmjit."""
    x, dy, w13, w2 = (array.astype(np.float64) for array in (x, dy, w13, w2))
    token, weight, offs = routing
    y, dx, dw13, dw2 = np.zeros_like(x), np.zeros_like(x), np.zeros_like(w13), np.zeros_like(w2)
    start = 0
    for expert, end in enumerate(offs.tolist()):
        for row in range(start, end):
            t, share = token[row], float(weight[row])
            h = x[t] @ w13[expert]
            s = swiglu(h[None])[0]
            y[t] += share * (s @ w2[expert])
            do = share * dy[t]
            dh = swiglu_backward(h[None], (w2[expert] @ do)[None])[0]
            dw2[expert] += np.outer(s, do)
            dw13[expert] += np.outer(x[t], dh)
            dx[t] += w13[expert] @ dh
        start = end
    return y, dx, dw13, dw2


def main() -> None:
    random = np.random.default_rng(0)

    def draw(*shape):
        return (random.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)

    x, dy = draw(TOKENS, MODEL), draw(TOKENS, MODEL)
    w13, w2 = draw(EXPERTS, MODEL, 2 * HIDDEN), draw(EXPERTS, HIDDEN, MODEL)
    router = draw(MODEL, EXPERTS)
    routing = route(x, router)
    print("rows of each expert:", gemmjit.offsets.to_group_sizes(routing[2]).tolist())

    y, saved = forward(x, w13, w2, routing)
    results = y, *backward(dy, w13, w2, routing, saved)
    for name, got, exact in zip(
        ("y", "dx", "dw13", "dw2"), results, dense_loop(x, dy, w13, w2, routing), strict=True
    ):
        error = np.abs(got - exact).max() / np.abs(exact).max()
        print(f"{name:5} largest error {error:.1e} of the largest element")
        assert error < 2e-6, name


if __name__ == "__main__":
    main()
