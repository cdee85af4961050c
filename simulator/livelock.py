"""Notices when requests take memory from each other without end: see docs/decisions/0005."""

from simulator.core import View


class Livelock:
    """Between two tokens and arrivals the schedule is a function of who runs with how many computed tokens, who waits
    and what is cached: should that state return, no token will ever come."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._states: set[object] = set()
        self._since: object = None

    def returns(self, since: object) -> bool:
        """Whether the state after a preempting step has been there before, with `since` (a count of tokens and
        arrivals) unchanged. O(n) in requests; what is cached, O(blocks), is looked at once the rest has returned."""
        view = self._view
        if since != self._since:
            self._since = since
            self._states.clear()
        running = tuple((request.index, view.context_tokens(request)) for request in view.running)
        state: object = (running, tuple(request.index for request in view.waiting))
        if view.memory is not None and state in self._states:
            state = (state, view.memory.picture([*view.running]))
        known = state in self._states
        self._states.add(state)
        return known
