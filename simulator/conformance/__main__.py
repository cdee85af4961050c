"""`python -m simulator.conformance POLICY`: the conformance suite on the command line."""

from pathlib import Path

import click

from simulator.errors import run_command

EPILOG = """\b
Examples:
  python -m simulator.conformance my_policies:ShortestPromptFirst
  python -m simulator.conformance my_policies:ShortestPromptFirst --set token_budget=32 --set max_num_seqs=4
  python -m simulator.conformance vllm --set max_num_batched_tokens=16 --set max_num_seqs=4 --cases 1000

\b
Exit status: 0 it conforms, 1 it does not, 2 the command line is wrong.
"""


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.argument("name", metavar="POLICY")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set an option. Repeatable.")
@click.option("--cases", type=click.IntRange(1), default=200, show_default=True, metavar="N", help="Workloads.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Seed of the workloads."
)
@click.option(
    "--steps-in-flight",
    type=click.IntRange(1),
    multiple=True,
    metavar="N",
    help="Steps scheduled ahead. Repeatable. [default: 1 and the policy's own]",
)
def check(name: str, settings: tuple[str, ...], cases: int, seed: int, steps_in_flight: tuple[int, ...]) -> None:
    """Check that a scheduling policy keeps the rules and its promises.

    POLICY is a name, a YAML with options, or package.module:Class; the module is looked for in the current folder.
    Limits are put to the test only if they are small: set them.
    """
    from simulator.conformance import check_policy
    from simulator.plugins import make_policy
    from simulator.policy import PolicyBase, Surroundings
    from simulator.policy_runs import resolve_policies
    from simulator.settings import apply_settings

    folders = (Path.cwd(),)
    runs = apply_settings(resolve_policies([name], Path.cwd(), None), settings, folders)
    surroundings = Surroundings("NVIDIA H200", 141 * 2**30, 131072)
    policy = make_policy(runs[0].policy, runs[0].options, surroundings, folders, where=_where(runs[0].source))
    assert isinstance(policy, PolicyBase), "policy_class sees to it"
    passed = check_policy(policy, cases=cases, seed=seed, steps_in_flight=steps_in_flight or None)
    reached = passed.reached
    click.echo(
        f"{name.rpartition(':')[2]} conforms: {cases} cases, {reached.steps} steps, {reached.preemptions} preemptions"
    )
    for limit in passed.untested:
        click.echo(f"note: {limit}")


def _where(source: str) -> str | None:
    """Where a policy was given, for messages: a file, or nothing for the name on the command line."""
    return None if source == "--policy" else source


if __name__ == "__main__":
    run_command(check, "python -m simulator.conformance")
