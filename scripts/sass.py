"""Reads listings of CUDA machine code (nvdisasm, sm_80 to sm_90): instructions, basic blocks and loops of kernels."""

import collections
import re
from dataclasses import dataclass, field

PIPES = ("tensor", "fma", "alu", "double", "exp", "shared", "global", "control", "uniform")

# Instructions by pipe. "exp" is the pipe of special functions (MUFU) and of conversions between integers and floats.
OPCODES = {
    "tensor": "HMMA IMMA DMMA HGMMA IGMMA QGMMA",
    "fma": "FFMA FMUL FADD IMAD HFMA2 HADD2 HMUL2 FSWZADD IDP",
    "alu": "ISETP LOP3 IADD3 LEA FSEL FSETP SHF SHL F2FP FMNMX FMNMX3 MOV PLOP3 PRMT SEL VIADD IABS P2R R2P IMNMX "
    "VIMNMX VIMNMX3 VIADDMNMX FSET HSET2 HSETP2 HMNMX2 VHMNMX I2FP SGXT BMSK VOTE VABSDIFF S2R CS2R B2R R2B FCHK MOVM",
    "double": "DFMA DADD DMUL DSETP",
    "exp": "MUFU F2I I2F F2F I2I FRND FLO BREV POPC",
    "shared": "LDS STS LDSM STSM ATOMS SHFL REDUX",
    "global": "LDG STG LD ST LDL STL ATOM ATOMG RED LDGSTS UBLKCP UTMALDG UTMASTG UTMAPF MATCH CCTL",
    "control": "BRA BRX BRXU JMP JMX JMXU BSSY BSYNC BREAK CALL RET EXIT KILL NOP BAR DEPBAR LDGDEPBAR WARPSYNC YIELD "
    "NANOSLEEP MEMBAR ERRBAR FENCE BMOV BPT ENDCOLLECTIVE WARPGROUP SYNCS ARRIVES ELECT PREEXIT ACQBULK UCGABAR_ARV "
    "UCGABAR_WAIT UTMACMDFLUSH LEPC",
    "uniform": "LDC ULDC UMOV USHF UIMAD UIADD3 ULEA S2UR UISETP ULOP3 UPRMT USEL R2UR UPLOP3 VOTEU UBREV UFLO UPOPC "
    "UBMSK USGXT USETMAXREG",
}
PIPE_OF = {opcode: pipe for pipe, opcodes in OPCODES.items() for opcode in opcodes.split()}


# Multiply-accumulates of a warp's tensor-core instruction, by the shape in its name.
MMA_SHAPES = {"16816": 2048, "1688": 1024, "1684": 512, "16832": 4096, "16864": 8192, "884": 256, "8816": 1024}


class Unreadable(Exception):
    pass


@dataclass
class Instruction:
    address: int
    guard: str  # "@P0", "@!UP1" or ""
    opcode: str  # with its modifiers: "HMMA.16816.F32.BF16"
    operands: str
    frames: tuple = ()  # (file, line) of the source, then of the calls that were inlined; empty without -lineinfo

    @property
    def name(self):
        return self.opcode.partition(".")[0]

    @property
    def pipe(self):
        return PIPE_OF[self.name]

    def targets(self):
        """Labels in the operands: `(.L_x_1) of a branch, (*"BRANCH_TARGETS .L_x_1,.L_x_2"*) of an indirect one."""
        return re.findall(r"\.L[\w.]*", self.operands)

    def cost(self):
        """What a warp takes: "slots" and the pipe's own name count instructions, "mma" and "wgmma" multiply-accumulates
        (in bfloat16's that take as long), "wavefronts" 128 bytes of shared memory."""
        found = {"slots": 1, self.pipe: 1}
        parts = self.opcode.split(".")
        if self.pipe == "tensor":
            relative = 2 if "TF32" in parts else {"DMMA": 16, "IMMA": 0.5, "QGMMA": 0.5, "IGMMA": 0.5}.get(self.name, 1)
            if shape := re.search(r"\.(\d+)x(\d+)x(\d+)", self.opcode):  # of four warps
                m, n, k = map(int, shape.groups())
                found["wgmma"] = m * n * k / 4 * relative
                rows = n + (m if re.match(r"\w+, gdesc", self.operands) else 0)  # operands in shared memory
                found["wavefronts"] = rows * k * 2 * relative / 128 / 4
            elif len(parts) > 1 and parts[1] in MMA_SHAPES:
                found["mma"] = MMA_SHAPES[parts[1]] * relative
            else:
                raise Unreadable(f"the shape of {self.opcode} is unknown")
        elif self.name in ("LDSM", "STSM"):
            found["wavefronts"] = int(parts[-1]) if parts[-1].isdigit() else 1
        elif self.pipe == "shared" or self.name == "LDGSTS":
            found["wavefronts"] = 4 if "128" in parts else 2 if "64" in parts else 1
        return found


@dataclass
class Block:
    instructions: list
    successors: list = field(default_factory=list)  # indices of blocks


@dataclass
class Loop:
    """A natural loop: the blocks that reach a back edge to `header` without leaving it."""

    header: int
    blocks: set
    path: str = ""  # "2.1": the first loop in the second of the kernel, in order of addresses
    children: list = field(default_factory=list)


@dataclass
class Kernel:
    name: str
    blocks: list
    loops: list = field(default_factory=list)  # outermost ones

    def all_loops(self):
        stack = list(reversed(self.loops))
        while stack:
            loop = stack.pop()
            yield loop
            stack += reversed(loop.children)


INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
FRAME = re.compile(r'^\s*//## File "([^"]+)", line (\d+)( inlined at)?')


def listing(text):
    """Mangled name -> instructions and labels (name -> place in the instructions) of each .text section."""
    found, code, labels, frames, complete = {}, None, None, (), True
    for row in text.splitlines():
        if match := re.match(r"\s*\.section\s+([^,\s]+)", row):
            name = match.group(1)
            code, labels, frames, complete = [], {}, (), True
            if name.startswith(".text."):
                found[name.removeprefix(".text.")] = code, labels
        elif code is None:
            continue
        elif match := INSTRUCTION.match(row):
            address, guard, opcode, operands = match.groups()
            code.append(Instruction(int(address, 16), (guard or "").strip(), opcode, operands, frames))
        elif match := re.match(r"^([.$\w]+):", row):
            labels[match.group(1)] = len(code)
        elif match := FRAME.match(row):
            frames = (frames if not complete else ()) + ((match.group(1), int(match.group(2))),)
            complete = match.group(3) is None
    return found


def flow(code, place, labels):
    """Places that may follow an instruction, or None if it only falls through."""
    instruction, after = code[place], place + 1
    name = instruction.name
    if name in ("EXIT", "RET", "KILL"):
        return [after] if instruction.guard else []
    local = [labels[label] for label in instruction.targets() if label in labels]
    if name in ("BRA", "JMP", "BRX", "BRXU", "JMX", "JMXU") or name == "CALL" and local:
        if ".DIV" in instruction.opcode or ".CONV" in instruction.opcode:
            return [after]  # a diverged warp goes elsewhere
        if not local:
            raise Unreadable(f"{instruction.opcode} at {instruction.address:#x}: its target is unknown")
        conditional = instruction.guard or re.match(r"!?U?P\d", instruction.operands)
        return local + [after] if conditional else local
    return None


def control_flow(code, labels):
    """Basic blocks that are reachable from the first instruction."""
    follows = {place: to for place in range(len(code)) if (to := flow(code, place, labels)) is not None}
    starts = {0, *(place for to in follows.values() for place in to), *(place + 1 for place in follows)}
    starts = sorted(place for place in starts if place < len(code))
    number = {place: index for index, place in enumerate(starts)}
    blocks = []
    for index, start in enumerate(starts):
        end = starts[index + 1] if index + 1 < len(starts) else len(code)
        to = follows.get(end - 1, [end])
        blocks.append(Block(code[start:end], [number[place] for place in dict.fromkeys(to) if place in number]))
    reachable, stack = {0}, [0]
    while stack:
        for successor in blocks[stack.pop()].successors:
            if successor not in reachable:
                reachable.add(successor)
                stack.append(successor)
    order = sorted(reachable)
    renumbered = {old: new for new, old in enumerate(order)}
    return [Block(blocks[old].instructions, [renumbered[to] for to in blocks[old].successors]) for old in order]


def dominators(blocks):
    """Immediate dominator of each block (Cooper, Harvey and Kennedy 2001), and the blocks' reverse postorder."""
    order, seen, stack = [], {0}, [(0, iter(blocks[0].successors))]
    while stack:
        block, successors = stack[-1]
        following = next((to for to in successors if to not in seen), None)
        if following is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(blocks[following].successors)))
    order.reverse()
    rank = {block: place for place, block in enumerate(order)}
    before = collections.defaultdict(list)
    for block in order:
        for to in blocks[block].successors:
            before[to].append(block)
    immediate, changed = {0: 0}, True
    while changed:
        changed = False
        for block in order[1:]:
            common = None
            for other in before[block]:
                if other not in immediate:
                    continue
                if common is None:
                    common = other
                while common != other:
                    if rank[common] > rank[other]:
                        common = immediate[common]
                    else:
                        other = immediate[other]
            if immediate.get(block) != common:
                immediate[block], changed = common, True
    return immediate, rank, before


def natural_loops(blocks):
    """Outermost natural loops, with their inner ones. Back edges to one header make one loop."""
    immediate, rank, before = dominators(blocks)

    def dominates(above, block):
        while rank[block] > rank[above]:
            block = immediate[block]
        return block == above

    found = {}
    for block in rank:
        for to in blocks[block].successors:
            if rank[to] > rank[block]:
                continue
            if not dominates(to, block):
                raise Unreadable(f"a loop with two entries at {blocks[to].instructions[0].address:#x}")
            body = found.setdefault(to, {to})
            stack = [block]
            while stack:
                member = stack.pop()
                if member not in body:
                    body.add(member)
                    stack += before[member]
    loops = [Loop(header, body) for header, body in found.items()]
    loops.sort(key=lambda loop: (len(loop.blocks), loop.header))
    outermost = []
    for place, loop in enumerate(loops):
        parent = next((larger for larger in loops[place + 1 :] if loop.header in larger.blocks), None)
        (parent.children if parent else outermost).append(loop)

    def name(siblings, prefix):
        siblings.sort(key=lambda loop: blocks[loop.header].instructions[0].address)
        for place, loop in enumerate(siblings, 1):
            loop.path = f"{prefix}{place}"
            name(loop.children, loop.path + ".")

    name(outermost, "")
    return outermost


def kernels(text):
    """The kernels and device functions of a listing."""
    for name, (code, labels) in listing(text).items():
        if not code:
            continue
        unknown = {instruction.name for instruction in code} - set(PIPE_OF)
        if unknown:
            raise Unreadable(f"{name}: unknown instructions {', '.join(sorted(unknown))}")
        blocks = control_flow(code, labels)
        yield Kernel(name, blocks, natural_loops(blocks))
