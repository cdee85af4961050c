"""What the scheduler refuses of a policy's batch, in words that name the policy and the request."""

from typing import NoReturn

from simulator.core import Batch, Request
from simulator.errors import PolicyError


def check_parts(name: str, batch: Batch) -> None:
    """Everybody has one part in a step: a chunk, a decode or to be preempted. O(requests named)."""
    given = [request for request, _ in batch.chunks]
    if len(set(given)) < len(given):
        twice = next(request for request in given if given.count(request) > 1)
        raise PolicyError(f"{name} gave {twice!r} two chunks in one step")
    preempted: set[Request] = set()
    for request in batch.preempted:
        if request.state in (Request.WAITING, Request.ENDED):
            raise PolicyError(f"{name} preempts {request!r}, which is not running")
        if request in preempted:
            raise PolicyError(f"{name} preempts {request!r} twice in one step")
        if request in given:
            raise PolicyError(f"{name} preempts {request!r} and gives it tokens in one step")
        preempted.add(request)
    for request in batch.decodes or ():
        if request.state != Request.DECODING:
            raise PolicyError(f"{name} decodes {request!r}, which is not decoding")
        if request in preempted:
            raise PolicyError(f"{name} preempts and decodes {request!r} in one step")
    for request in batch.in_vain:
        if request.state != Request.FINISHING or request in preempted:
            raise PolicyError(f"{name} decodes {request!r} in vain, which does not have its last token under way")
    if len(set(batch.in_vain)) < len(batch.in_vain):
        raise PolicyError(f"{name} decodes a request in vain twice in one step")


def check_padding(name: str, batch: Batch, tokens: int) -> None:
    """Padding only adds to the `tokens` of a step, and to this one alone."""
    assert batch.padding is not None
    if batch.padding.tokens < tokens:
        raise PolicyError(f"{name} planned {tokens} tokens and pads them to {batch.padding.tokens}")
    if batch.holds != Batch.ONCE:
        raise PolicyError(f"{name} promises what follows a padded step, where no padding would be priced")


def refuse_chunk(name: str, request: Request, tokens: int, left: int) -> NoReturn:
    """A chunk that is not of what is left of a prompt."""
    if request.state != Request.PREFILLING:
        raise PolicyError(f"{name} gave {request!r} a prefill chunk, but its prompt is complete")
    raise PolicyError(f"{name} gave {request!r} {tokens} tokens; it has {left} left")
