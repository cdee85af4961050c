"""`profile-network`: the command line. PyTorch is not imported here."""

import re
import sys
import time
from pathlib import Path

import click

from profiler.options import exit_statuses
from simulator import __version__

HELP = """Measure what the GPUs of this host exchange, and write a network that simulate-trace reads.

\b
Examples:
  profile-network --out my-host.yaml
  profile-network --ranks 2 --out pair.yaml
  profile-network --sizes 8KB:64MB --name "two L40S on PCIe" --out l40s.yaml
  simulate-trace mytrace.csv --costs mytable.csv --tensor 2 --network pair.yaml
  profile-network --device cpu --sizes 8KB,64KB,1MB --out trial.yaml
      try the program without a GPU: processes of this machine talk through gloo

\b
What is timed, among all ranks, 16-bit numbers, in CUDA graphs as engines run them:
  all_reduce   a sum over ranks: NCCL, and up to 16 MB also PyTorch's one-shot kernel on symmetric memory, which is
               like those that engines use for small messages; the network gets the faster of both at each size
  all_gather   NCCL; a size is what each rank has afterwards
  send         NCCL, from the first GPU to the second and back; half of that

First it is checked that the right numbers arrive. A graph holds 40 exchanges, 8 above 4 MB; a sample is the time of a
replay divided by these, the mean over ranks; 31 samples a size. NVLink multicast is left off (NCCL_NVLS_ENABLE=0,
TORCH_SYMM_MEM_DISABLE_MULTICAST=1), because it fails on some hosts; --multicast leaves it to NCCL.

\b
What is written:
  NAME.yaml   the network: median times by size; link, the latency of a round and the bandwidth that all-reduces and
              sends fit by least squares, for numbers of ranks that were not measured; GPU, versions, date
  NAME.csv    all readings of all kernels, with 10 % and 90 % quantiles and repeats

Sizes are in bytes, or in KB, MB and GB of 1024; A:B are A, 2 A, 4 A and so on up to B.

Exit status: 0 done; 2 the input or the machine does not allow it, with one message; 1 anything else, Ctrl-C
included; then nothing is written.
"""

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


class Sizes(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic since click 8.2
    """Bytes as `8KB,1MB` or, doubling, `8KB:256MB`; both may be mixed."""

    name = "sizes"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Bytes, ascending, each once."""
        sizes = set()
        for part in str(value).split(","):
            first, last = (self._bytes(word, param, ctx) for word in (part.split(":", 1) * 2)[:2])
            if last < first:
                self.fail(f"{part.strip()} ends before it begins", param, ctx)
            sizes |= {first << doublings for doublings in range((last // first).bit_length())}
        return tuple(sorted(sizes))

    def _bytes(self, word: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"([0-9]+) *([kmg]?)i?b?", word.strip().lower())
        if found is None or int(found[1]) == 0:
            self.fail(f"{word.strip()!r} is no size; write 8KB, 1MB or plain bytes", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE.yaml", help="The network.")
@click.option("--ranks", type=click.IntRange(min=2), metavar="N",
              help="GPUs that take part, the first N.  [default: all that PyTorch sees; 2 on a CPU]")  # fmt: skip
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True,
              help="cpu: try the program without GPUs.")  # fmt: skip
@click.option("--sizes", type=Sizes(), metavar="SIZES",
              help="Of messages.  [default: 8KB:256MB; 8KB:1MB on a CPU]")  # fmt: skip
@click.option("--name", metavar="TEXT", help="What the network is called.  [default: the file's name]")
@click.option("--multicast", is_flag=True, help="Let NCCL use NVLink multicast (NVLS).")
@click.option("--force", is_flag=True, help="Overwrite an existing network.")
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
@click.version_option(__version__, prog_name="profile-network")
def command(**options: object) -> None:
    started_s = time.monotonic()
    with exit_statuses("profile-network"):
        from profiler.network_run import profile_network  # pydantic and numpy, a second to load, are not for --help
        from profiler.network_setup import Options
        from profiler.ranks import RankError

        try:
            profile_network(Options(**options), started_s)  # type: ignore[arg-type]
        except RankError as error:
            click.echo(f"profile-network: a rank failed, nothing was written: {error}", err=True)
            sys.exit(1)


def main() -> None:
    """Entry point."""
    command(prog_name="profile-network")
