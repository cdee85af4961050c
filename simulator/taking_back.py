"""Taking back a token whose step is under way: a preempted request of some engines samples it again later."""

from struct import Struct

from simulator.core import Request
from simulator.runlog import EMISSION_COLUMNS, STAY_COLUMNS, STRETCH_COLUMNS, RunLog

_STRETCH = Struct("".join(STRETCH_COLUMNS.values()))
_WIDTH = _STRETCH.size // 4
"""Integers of a stretch in the log's array of them."""
_DECODES = tuple(STRETCH_COLUMNS).index("num_decodes")


def take_back_token(log: RunLog, request: Request) -> None:
    """The newest token of `request`, which is in no cohort, was never sampled: neither the log nor it know of it.

    For a single cohort of decodes. O(what was logged since).
    """
    emissions, width = log.emissions, len(EMISSION_COLUMNS)
    for row in range(len(emissions) - width, -1, -width):
        index, iteration, previous = emissions[row : row + width]
        if iteration < request.last_token:
            break
        if index == request.index:
            del emissions[row : row + width]
            _forget(request, previous)
            return
    stays, width = log.stays, len(STAY_COLUMNS)
    row = len(stays) - width
    while stays[row] != request.index:
        row -= width
    ticks, previous = stays[row + 3 : row + 5]
    if ticks > 1:
        stays[row + 3] = ticks - 1
        previous = _decoded_before(log, request.last_token)
    else:
        del stays[row : row + width]
    _forget(request, previous)


def _forget(request: Request, last_token: int) -> None:
    if request.first_token == request.last_token:
        request.first_token = -1
    request.last_token = last_token
    request.generated -= 1
    request.known = request.prompt_tokens + request.generated


def _decoded_before(log: RunLog, iteration: int) -> int:
    """The last iteration before this one with decodes; there must be one."""
    end = iteration
    for row in range(len(log.stretches) - _WIDTH, -1, -_WIDTH):
        first, *_ = stretch = _STRETCH.unpack(log.stretches[row : row + _WIDTH].tobytes())
        if stretch[_DECODES] and first < end:
            return end - 1
        end = min(end, first)
    raise AssertionError(f"nobody decoded before iteration {iteration}")
