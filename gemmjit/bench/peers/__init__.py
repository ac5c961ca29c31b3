"""Contenders: one module per library, each able to say why it is missing."""

from gemmjit.bench.peers.peer import Contender, Peer, Prepared
from gemmjit.bench.peers.registry import PEERS, peers_of, register

__all__ = ["PEERS", "Contender", "Peer", "Prepared", "peers_of", "register"]
