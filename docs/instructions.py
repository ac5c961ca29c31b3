"""Write the table of instructions in ``docs/explanation/emulator.md``.

``python docs/instructions.py`` takes a minute or two.

It lists what the cases of the differential test (``tests/differential.py``) execute, and what the
tests execute of Blackwell's instructions, with what is known of these
(``tests/blackwell_evidence.py``). ``python tests/triton_programs.py``, where Triton is installed,
writes what Triton's kernels execute.
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PAGE = CHECKOUT / "docs" / "explanation" / "emulator.md"
BEGIN, END = "<!-- written by docs/instructions.py -->\n", "<!-- end of what it wrote -->\n"
BLACKWELL = "<!-- written by docs/instructions.py: Blackwell -->\n"
QUESTIONS = "<!-- written by docs/instructions.py: undecided -->\n"
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
    elsewhere = ("tcgen05", "clusterlaunchcontrol")  # see `blackwell_table`
    others = ", ".join(f"`{p}`" for p in known if p not in rows and not p.startswith(elsewhere))
    return "".join(lines) + f"\nNot executed by it, and so known from documents alone: {others}.\n"


def blackwell_table(executed: dict[str, set[str]]) -> str:
    """Return the table of Blackwell's instructions, with the evidence for each."""
    from blackwell_evidence import ORDER_ONLY, known_good, written_down

    lines = ["| instruction | executed by | evidence |\n|---|---|---|\n"]
    for name, users in sorted(executed.items()):
        if ORDER_ONLY.match(name):
            evidence = "document only: no number depends on it"
        elif sources := known_good(name):
            evidence = "known-good kernels: " + ", ".join(sources)
        elif test := written_down(name):
            evidence = f"document, and CUTLASS's layouts (`{test}`)"
        else:
            evidence = "document only"
        lines.append(f"| `{name}` | {', '.join(sorted(users))} | {evidence} |\n")
    return "".join(lines)


def questions_table() -> str:
    """Return the table of what is undecided."""
    from gemmjit.emulator.assumptions import ASSUMPTIONS

    lines = ["| name | question | readings, the default first | why |\n|---|---|---|---|\n"]
    for name, each in ASSUMPTIONS.items():
        readings = ", ".join(f"`{reading}`" for reading in each.readings)
        lines.append(f"| `{name}` | {each.question} | {readings} | {each.why} |\n")
    return "".join(lines)


def named(text: str) -> set[str]:
    """Return the full names of the instructions in a table."""
    found = set()
    for line in text.splitlines():
        if line.startswith("| `"):
            prefix, forms, _ = (cell.strip() for cell in line.strip("|").split(" | "))
            for form in forms.split(", "):
                found.add(prefix.strip("`") + ("" if form == "as it is" else form.strip("`")))
    return found


def written(begin: str = BEGIN) -> str:
    """Return a part of the page that this writes."""
    return PAGE.read_text(encoding="utf-8").split(begin)[1].split(END)[0]


def write(begin: str, text: str) -> None:
    """Put a part into the page."""
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    PAGE.write_text(before + begin + text + END + rest.split(END, 1)[1], encoding="utf-8")


def main() -> None:
    """Run every case in the emulator and write the tables."""
    import blackwell_evidence
    from differential import executed
    from micro_kernels import micros

    from gemmjit.arch import Arch

    arch = Arch.parse("sm_90a")
    write(BEGIN, table(executed(arch, list(micros(arch)))))
    write(BLACKWELL, blackwell_table(blackwell_evidence.executed()))
    write(QUESTIONS, questions_table())


if __name__ == "__main__":
    main()
