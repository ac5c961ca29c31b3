"""placeholder"""
from typing import Any
class RaceTracker:
    def __init__(self, machine: Any) -> None: self.machine=machine
    def __getattr__(self, name): return lambda *a, **k: None
    def orders(self, grid): return False
    def tracks(self, grid): return False
