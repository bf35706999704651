"""Cases of sass_cost.py: what a block of a kernel computes, how often its loops run, and the devices."""

from dataclasses import dataclass, field

STATUS = "not confirmed on hardware"

# Instructions that a scheduler issues per cycle, assumed for all kernels: dependent instructions, barriers and loads
# take the other cycles.
ISSUED_PER_CYCLE = 0.6


@dataclass(frozen=True)
class Device:
    """Rates per cycle of a multiprocessor; docs/internals/kernel_cost.md gives their sources."""

    name: str
    architecture: str
    multiprocessors: int
    clock: float  # Hz
    mma: float  # multiply-accumulates of mma.sync, bfloat16
    wgmma: float  # of wgmma
    bandwidth: float  # bytes per second
    schedulers: int = 4
    exponentials: int = 16
    wavefronts: int = 1  # of shared memory, 128 bytes each

    def times(self, figures):
        """Picoseconds that each resource needs for what one token of a head takes."""
        cycles = {
            "issue": figures["slots"] / (self.schedulers * ISSUED_PER_CYCLE),
            "products": figures["mma"] / self.mma + (figures["wgmma"] / self.wgmma if self.wgmma else 0),
            "exponentials": figures["exp"] * 32 / self.exponentials,
            "shared": figures["wavefronts"] / self.wavefronts,
        }
        found = {name: amount / (self.multiprocessors * self.clock) * 1e12 for name, amount in cycles.items()}
        return {**found, "memory": figures["bytes"] / self.bandwidth * 1e12}


DEVICES = (
    Device("H100 SXM", "sm_90", 132, 1.83e9, 0.62 * 2048, 2048, 3.35e12),
    Device("A100 SXM 80 GB", "sm_80", 108, 1.41e9, 1024, 0, 2.039e12),
)


@dataclass(frozen=True)
class Case:
    name: str
    kernel: str  # regular expression for "file: kernel"
    warps: int  # of a block
    token_heads: float  # tokens times heads that a block computes
    bytes: float  # of device memory per token-head
    # (statement, trips): a regular expression for the loop's statement, the statements around it and the calls that
    # were inlined, or the loop's path ("2.1"). A list has the trips of several loops with this statement, in order of
    # addresses; a dictionary differs by architecture. The first rule that matches counts.
    loops: list = field(default_factory=list)
    # (statement, times): a share of the instructions that a statement, or one around it, has in the source. 0: they do
    # not run in this case. Without a rule both sides of a branch count.
    parts: list = field(default_factory=list)


CASES = []
SUMS = {}
