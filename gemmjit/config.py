"""How a kernel tiles its work: one frozen dataclass per template.

A config says what a user may choose; what the problem dictates (types, memory orders, alignment)
is a `gemmjit.kernels.Variant`. The rules that a config must obey are in `gemmjit.constraints`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import wraps
from typing import Any, ClassVar, Literal

from gemmjit.errors import InvalidConfigError
from gemmjit.pickles import NamedFields

__all__ = ["Config", "SimtConfig", "Sm80MmaConfig", "Sm90TmaMmaConfig", "Sm90WgmmaConfig"]

Specialization = Literal["", "nk"]
DeviceSchedule = Literal["", "persistent", "bounded", "compact"]
Order = Literal["listed", "claimed"]


def _telling_fields(init: Callable[..., None]) -> Callable[..., None]:
    """Return a config's ``__init__``, which names the fields where it is given an unknown one."""

    @wraps(init)
    def checked(self: Config, *values: object, **named: object) -> None:
        try:
            init(self, *values, **named)
        except TypeError:
            _check_names(type(self), named)
            raise

    return checked


def _check_names(config_type: type[Config], names: Iterable[str]) -> None:
    known = [field.name for field in fields(config_type)]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise InvalidConfigError(
            f"config: unknown field {', '.join(unknown)}; {config_type.__name__} has "
            + ", ".join(known)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(NamedFields):
    """Base of all tile configurations.

    Attributes
    ----------
    block_m, block_n, block_k : int
        Tile of the result that one block computes, and the slice of the contraction that it holds
        in shared memory at a time, in elements.
    min_blocks_per_sm : int
        Second argument of ``__launch_bounds__``: the compiler keeps registers low enough for this
        many resident blocks.
    specialize : {"", "nk"}
        ``"nk"`` compiles N and K in; the default keeps them run-time arguments.
    schedule : {"", "persistent", "bounded", "compact"}
        How tiles are found when offsets are on the device: as many blocks as fit, which walk the
        offsets and take tiles in turn (persistent); a block for each tile that there could be, of
        which the surplus ends at once (bounded); a list built by a small kernel first (compact).
        The default leaves the choice to gemmjit.
    """

    kernel: ClassVar[str] = ""

    block_m: int
    block_n: int
    block_k: int
    min_blocks_per_sm: int = 1
    specialize: Specialization = ""
    schedule: DeviceSchedule = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Let an unknown name raise an `InvalidConfigError`, from Python's dataclass with slots.

        Such a dataclass is made twice, the second time with its ``__init__``.
        """
        super(Config, cls).__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = _telling_fields(cls.__init__)  # type: ignore[method-assign]

    def to_dict(self) -> dict[str, object]:
        """Return the fields as a JSON-compatible mapping."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Config:
        """Build a config from a mapping; unknown and missing names are errors.

        Raises
        ------
        InvalidConfigError
            If a name is unknown or a value has the wrong type.
        """
        _check_names(cls, values)
        try:
            config = cls(**values)  # type: ignore[arg-type]
        except TypeError as error:
            raise InvalidConfigError(f"config: {error}") from None
        wrong = config.wrong_types()
        if wrong:
            raise InvalidConfigError("config: " + "; ".join(wrong))
        return config

    def wrong_types(self) -> list[str]:
        """Return a reason for each field that holds a value of another type than declared."""
        reasons = []
        for field in fields(self):
            value = getattr(self, field.name)
            expected = {"int": int, "bool": bool}.get(str(field.type), str)
            if type(value) is not expected:
                reasons.append(f"{field.name} must be {expected.__name__}; got {value!r}")
        return reasons

    @property
    def tile_name(self) -> str:
        """Everything that decides the bits, problem and schedule apart, in a few letters.

        Block sizes come first, as in ``128x128x64``, then a letter and a number for each field
        that differs from the kernel's default; some fields are always there. Two tiles of a kernel
        never have the same name. ``docs/how-to/choose_a_tile.md`` lists the letters.
        """
        return f"{self.block_m}x{self.block_n}x{self.block_k}{self._details()}"

    @property
    def code_name(self) -> str:
        """`tile_name`, without what the compiled code takes as an argument; names the kernel."""
        return self.tile_name

    def _details(self) -> str:
        """Return what a kernel's tile has beyond the block, each part with its letter."""
        return self._unlike("min_blocks_per_sm", "_b")

    def _unlike(self, name: str, letters: str) -> str:
        """Return a field after its letters, or nothing for its default."""
        value = getattr(self, name)
        default = next(f.default for f in fields(self) if f.name == name)
        return "" if value == default else f"{letters}{value}"

    def __str__(self) -> str:
        return self.tile_name + "".join(f"_{v}" for v in (self.specialize, self.schedule) if v)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimtConfig(Config):
    """Tile of k0, the FP32 kernel: 256 threads of 4 x 4 elements.

    Attributes
    ----------
    pad : int
        FP32 elements added to each row of a slice in shared memory, against bank conflicts.
    """

    kernel: ClassVar[str] = "k0"

    block_m: int = 64
    block_n: int = 64
    block_k: int = 16
    min_blocks_per_sm: int = 3
    pad: int = 4

    def _details(self) -> str:
        return self._unlike("pad", "_p") + self._unlike("min_blocks_per_sm", "_b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm80MmaConfig(Config):
    """Tile of k1, the mma.sync kernel: 8 warps as 2 x 4.

    Attributes
    ----------
    num_stages : int
        Shared-memory stages of the cp.async ring.
    pad : int
        Elements added to each row of a stage, against bank conflicts.
    double_buffer_fragments : bool
        Load the register fragments of the next k-step before multiplying this one's.
    """

    kernel: ClassVar[str] = "k1"

    block_m: int = 128
    block_n: int = 128
    block_k: int = 32
    num_stages: int = 2
    min_blocks_per_sm: int = 2
    pad: int = 8
    double_buffer_fragments: bool = False

    def _details(self) -> str:
        buffers = "_fdb" if self.double_buffer_fragments else ""
        rest = self._unlike("pad", "_p") + self._unlike("min_blocks_per_sm", "_b")
        return f"_s{self.num_stages}{buffers}{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm90TmaMmaConfig(Config):
    """Tile of k2, the TMA-fed mma.sync kernel: one producer warp, 8 consumer warps as 2 x 4.

    Attributes
    ----------
    num_stages : int
        Shared-memory stages of the ring between producer and consumers.
    swizzle : int
        Width of the XOR swizzle of shared memory in bytes: 128, 64, 32, or 0 for none.
    """

    kernel: ClassVar[str] = "k2"

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    num_stages: int = 3
    min_blocks_per_sm: int = 2
    swizzle: int = 128

    def _details(self) -> str:
        rest = self._unlike("swizzle", "_sw") + self._unlike("min_blocks_per_sm", "_b")
        return f"_s{self.num_stages}{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm90WgmmaConfig(Config):
    """Tile of k3, the wgmma kernel: a producer and two consumer warpgroups.

    Attributes
    ----------
    num_stages : int
        Shared-memory stages of the ring between producer and consumers.
    pingpong : bool
        Whether the consumers take turns, each with a tile of its own, or share every tile.
    store_boxes : int
        Boxes of 64 rows of 128 bytes in shared memory that each consumer stores through.
    raster_m : int
        Height of the bands, in tiles, in which a group is walked.
    b_evict_first : bool
        Whether B leaves L2 first: for few rows a group, where it is read once.
    order : {"listed", "claimed"}
        Which tiles of the list a block takes: those that are a whole grid apart (listed), or the
        next one whenever it is ready, by a counter in device memory (claimed); then groups of the
        ragged-K form come with most rows first, up to 512 of them, and even groups of more than
        128 rows keep to the list in ping-pong.
    split_rows : int
        Rows from which on a group of the ragged-K form (wgrad) is computed in pieces of so many,
        which multiprocessors share, and which are added in an order that follows from their number
        alone; a multiple of 64, or 0 for never. A call with more rows than that takes a workspace
        of ``8 * m * n * rows / split_rows`` bytes, with m and n rounded up to whole tiles. Without
        effect in the ragged-M form.
    """

    kernel: ClassVar[str] = "k3"

    block_m: int = 128
    block_n: int = 192
    block_k: int = 64
    num_stages: int = 5
    pingpong: bool = True
    store_boxes: int = 1
    raster_m: int = 8
    b_evict_first: bool = False
    order: Order = "listed"
    split_rows: int = 0

    @property
    def tile_name(self) -> str:
        """As for every config, after ``pp`` (`pingpong`) or ``co`` (consumers share each tile).

        In ``pp128x192x64_s5c1r8_claimed`` follow `num_stages`, `store_boxes` and `raster_m`; then
        ``_ef`` if `b_evict_first`, `order` unless it is listed, and ``_split4096`` for
        `split_rows`.
        """
        return self.code_name + (str(self.split_rows) if self.split_rows else "")

    @property
    def code_name(self) -> str:
        """As for every config: `split_rows` is an argument of the kernel, but for 0."""
        way = "pp" if self.pingpong else "co"
        return f"{way}{self.block_m}x{self.block_n}x{self.block_k}{self._details()}"

    def _details(self) -> str:
        hint = "_ef" if self.b_evict_first else ""
        rest = hint + self._unlike("order", "_") + self._unlike("min_blocks_per_sm", "_b")
        splits = "_split" if self.split_rows else ""
        return f"_s{self.num_stages}c{self.store_boxes}r{self.raster_m}{rest}{splits}"
