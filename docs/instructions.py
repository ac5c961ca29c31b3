"""Write the table of instructions in ``docs/explanation/emulator.md``.

``python docs/instructions.py`` takes a minute or two.

It lists what the cases of the differential test (``tests/differential.py``) execute.
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PAGE = CHECKOUT / "docs" / "explanation" / "emulator.md"
BEGIN, END = "<!-- written by docs/instructions.py -->\n", "<!-- end of what it wrote -->\n"
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests")]


def table(executed: dict[str, set[str]]) -> str:
    """Return the table for instructions and the names of what executes them."""
    from gemmjit.emulator.dispatch import known_opcodes

    known = known_opcodes()
    rows: dict[str, tuple[set[str], set[str]]] = {}
    for name, users in executed.items():
        parts = name.split(".")
        prefixes = [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
        prefix = next(p for p in prefixes if p in known)
        forms, where = rows.setdefault(prefix, (set(), set()))
        forms.add(name.removeprefix(prefix))
        where.update(users)
    lines = ["| instruction | forms | executed by |\n|---|---|---|\n"]
    for prefix, (forms, where) in sorted(rows.items()):
        shown = ", ".join(f"`{form}`" if form else "as it is" for form in sorted(forms))
        lines.append(f"| `{prefix}` | {shown} | {', '.join(sorted(where))} |\n")
    others = ", ".join(f"`{prefix}`" for prefix in known if prefix not in rows)
    return "".join(lines) + f"\nNot executed by it, and so known from documents alone: {others}.\n"


def named(text: str) -> set[str]:
    """Return the full names of the instructions in a table."""
    found = set()
    for line in text.splitlines():
        if line.startswith("| `"):
            prefix, forms, _ = (cell.strip() for cell in line.strip("|").split(" | "))
            for form in forms.split(", "):
                found.add(prefix.strip("`") + ("" if form == "as it is" else form.strip("`")))
    return found


def written() -> str:
    """Return the part of the page that this writes."""
    return PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]


def main() -> None:
    """Run every case in the emulator and write the table."""
    from differential import executed
    from micro_kernels import micros

    from gemmjit.arch import Arch

    arch = Arch.parse("sm_90a")
    new = table(executed(arch, list(micros(arch))))
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(before + BEGIN + new + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
