"""The peers that exist. A new one is a module and an entry here, or a call of `register`."""

from __future__ import annotations

from collections.abc import Sequence

from gemmjit.bench.peers.cublas_loop import CublasLoop
from gemmjit.bench.peers.deepgemm import DeepGemm
from gemmjit.bench.peers.own import Gemmjit
from gemmjit.bench.peers.padded_bmm import PaddedBmm
from gemmjit.bench.peers.peer import Peer
from gemmjit.bench.peers.quack import Quack
from gemmjit.bench.peers.torch_grouped import TorchGrouped
from gemmjit.errors import InvalidProblemError

__all__ = ["PEERS", "peers_of", "register"]

#: Every peer by its name.
PEERS: dict[str, Peer] = {}

#: Other names.
_ALIASES = {"bmm": "padded", "cublas_loop": "cublas"}


def register(peer: Peer) -> None:
    """Let a peer be named in ``--vs``; one of the same name is replaced."""
    PEERS[peer.name] = peer


def peers_of(names: Sequence[str]) -> list[Peer]:
    """Return peers by name, each once, in the order given.

    Raises
    ------
    InvalidProblemError
        If one is unknown.
    """
    names = [_ALIASES.get(name, name) for name in names]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise InvalidProblemError(
            f"vs: expected some of {', '.join(PEERS)}; got {unknown[0]!r}. "
            "Register others with gemmjit.bench.peers.register"
        )
    return [PEERS[name] for name in dict.fromkeys(names)]


for _peer in (Gemmjit(), TorchGrouped(), CublasLoop(), PaddedBmm(), DeepGemm(), Quack()):
    register(_peer)
