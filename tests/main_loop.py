"""Spills in a kernel's main loop, read from its SASS."""

from __future__ import annotations

import re
from itertools import pairwise

_LABEL = re.compile(r"^\.(L_\w+):")
_BRANCH = re.compile(r"(@!?U?P\w+ +)?(BRA|BRX|JMP)\b(.*)")
_TARGET = re.compile(r"\.(L_\w+)\)")
_PRODUCT = re.compile(r"\b(HGMMA|HMMA|FFMA)\b")
_SPILL = re.compile(r"\b(LDL|STL)\b")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/ +(.*?);")


def main_loop_spills(sass: str) -> list[str]:
    """Return the loads and stores of spilled registers in the loops that multiply.

    Main loops are, of each product, the innermost natural loop around it; what surrounds them, once
    a tile, is not looked at.
    """
    code: list[str] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if label := _LABEL.match(line.strip()):
            labels[label[1]] = len(code)
        elif found := _INSTRUCTION.search(line):
            code.append(found[1].strip())
    loops = [(loop, blocks) for loop, blocks in _natural_loops(code, labels)]
    products = [i for i, text in enumerate(code) if _PRODUCT.search(text)]
    around = [[rows for _, rows in loops if i in rows] for i in products]
    inner = {min(found, key=len) for found in around if found}
    assert inner, "expected a loop that multiplies"
    return [code[i] for i in sorted(frozenset().union(*inner)) if _SPILL.search(code[i])]


def _natural_loops(code: list[str], labels: dict[str, int]) -> list[tuple[int, frozenset[int]]]:
    """Return head and instructions of each natural loop; loops with one head are joined."""
    after: dict[int, list[int]] = {}
    for i, text in enumerate(code):
        branch = _BRANCH.search(text)
        nexts = []
        if branch and (target := _TARGET.search(branch[3])) and target[1] in labels:
            nexts.append(labels[target[1]])
        stops = text.startswith(("EXIT", "RET")) or (branch and not text.startswith("@"))
        conditional = branch and re.search(r"\bU?P\d", branch[3].split("`")[0])
        if (not stops or conditional) and i + 1 < len(code):
            nexts.append(i + 1)
        after[i] = [n for n in nexts if n < len(code)]
    heads = sorted(
        {0, *(n for i, ns in after.items() for n in ns if ns != [i + 1])}
        | {i + 1 for i, ns in after.items() if ns != [i + 1] and i + 1 < len(code)}
    )
    block_of, blocks = {}, []
    for number, (start, end) in enumerate(pairwise([*heads, len(code)])):
        blocks.append(range(start, end))
        block_of |= dict.fromkeys(range(start, end), number)
    follow = [[block_of[n] for n in after[rows[-1]]] for rows in blocks]
    before: list[list[int]] = [[] for _ in blocks]
    for number, ns in enumerate(follow):
        for n in ns:
            before[n].append(number)
    everything = set(range(len(blocks)))
    dominators = [everything] * len(blocks)
    dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for number in range(1, len(blocks)):
            if not before[number]:
                continue
            new = {number} | set.intersection(*(dominators[p] for p in before[number]))
            if new != dominators[number]:
                dominators[number], changed = new, True
    loops: dict[int, set[int]] = {}
    for number, ns in enumerate(follow):
        for head in ns:
            if head in dominators[number] and dominators[number] != everything:
                body, pending = {head}, [number]
                while pending:
                    one = pending.pop()
                    if one not in body:
                        body.add(one)
                        pending += before[one]
                loops.setdefault(head, set()).update(body)
    return [(head, frozenset(i for b in body for i in blocks[b])) for head, body in loops.items()]
