"""Steps of decodes alone, many at a time: what a policy has promised to plan again and again need not be asked for."""

from typing import Any

from simulator.core import Batch
from simulator.policy import Policy
from simulator.runlog import PACK_STRETCH
from simulator.scheduler import Scheduler
from simulator.step_times import FOREVER, CoastingTimes


class CoastingScheduler(Scheduler):
    """The scheduler of one GPU, or of one tensor-parallel group; see `Scheduler`."""

    def __init__(self, policy: Policy, times: CoastingTimes, **memory: Any) -> None:
        super().__init__(policy, times, **memory)
        self._pieces = times
        self._decode_piece, self._count_beyond = times.decode_piece, times.count_beyond
        self._measured_context = times.measured_context

    def coast(self, until_ns: float) -> None:
        """Run all decodes for as long as the last batch's promise holds, up to the first plan at `until_ns` or later.

        As many steps stay under way as are: whenever the oldest completes the next one is booked. Most steps are these,
        so they do the least; flat, to look nothing up twice.
        """
        batch, decodes, view, depth = self._batch, self.decodes, self.view, self.under_way
        memory = self._memory
        if batch is None or batch.holds == Batch.ONCE or decodes.late or (memory is not None and not memory.coasts):
            return
        ends_ns, log_free, block_size, times = self.log.end_ns, self._log_free, self._block_size, self._pieces
        hosted = self.hosted
        finish_at, openers, finishing, log_end = decodes.finish_at, decodes.openers, self._finishing, ends_ns.append
        arrival_ns = until_ns
        while decodes.count:
            if hosted:
                until_ns = arrival_ns - times.pause_ns(decodes.count)
            if ends_ns[-depth] >= until_ns:
                return
            if finishing and batch.holds == Batch.UNTIL_FINISH:
                return
            if self._untold:
                self._tell(self.iterations - depth)
            if finishing and finishing[0][0] + depth == self.iterations:
                self._finish(finishing.popleft()[1])
            began = clock = decodes.clock
            # Until the next who finish complete, steps differ in nothing but time.
            stop = clock + finishing[0][0] + depth - self.iterations if finishing else FOREVER
            if self._untold:  # the planner has to be told of one under way before the step after next
                stop = min(stop, clock + 1)
            count, free_blocks, end_ns = decodes.count, view.free_blocks, ends_ns[-1]
            context = decodes.birth_sum + count * clock
            longest = decodes.longest() - clock
            if free_blocks <= openers[-clock % block_size]:
                return
            constant, slope, until = self._decode_piece(ends_ns, count, context + count, longest + clock + 1)
            if hosted:
                foreseen = times.foreseen(ends_ns, count, constant + slope * (context + count))
                stop = min(stop, clock + foreseen)
            # The last end tells nearly always, and is at hand: no step ends before the one it follows.
            while clock < stop and (end_ns < until_ns or ends_ns[-depth] < until_ns):
                opened = openers[-clock % block_size]
                if free_blocks <= opened:
                    break
                context += count
                if context >= until:
                    constant, slope, until = self._decode_piece(ends_ns, count, context, longest + clock + 1)
                    if hosted and not times.foreseen(ends_ns, count, constant + slope * context):
                        context -= count
                        break
                clock += 1
                free_blocks -= opened
                end_ns += int(constant + slope * context)
                log_end(end_ns)
                log_free(free_blocks)
                if clock in finish_at:
                    break
            if clock == began:
                return
            if context > count * self._measured_context:
                self._count_beyond(count, context, clock - began)
            decodes.clock, view.free_blocks, view.last_prefills = clock, free_blocks, 0
            if memory is not None:
                memory.coasted(clock - began)
            self._log_coasted(clock - began)
            if clock in finish_at:
                finishing.append((self.iterations - 1, self._settle()))

    def _log_coasted(self, ticks: int) -> None:
        """The last `ticks` iterations go on with the logged stretch, or are one of their own."""
        rows, count, running = self.log.stretches, self.decodes.count, len(self.view.running)
        if rows[-4] != count or rows[-3] or rows[-2] != running:
            start_ns, waiting = self.log.end_ns[-ticks - 1], len(self.waiting)
            if self._one_at_a_time:
                start_ns += self._times.pause_ns(count)
            kv_tokens = self.kv_tokens + count
            self._log_stretch(PACK_STRETCH(self.iterations, start_ns, 0, kv_tokens, count, 0, running, waiting))
        self.kv_tokens += ticks * count
        self.iterations += ticks
        self.decodes.last_tick = self.iterations - 1
