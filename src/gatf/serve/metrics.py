"""Counters and times of requests, in the text format of Prometheus."""

import threading
from collections import defaultdict
from collections.abc import Iterable

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends in seconds."""


class Metrics:
    """Requests by route, method and status, and how long they took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._times: dict[str, list[float]] = {}
        """By route: a count for each bucket, the count of all, the sum of seconds."""

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """`route` is one of the server's own paths, never what a client wrote."""
        with self._lock:
            self._requests[route, method, status] += 1
            times = self._times.setdefault(route, [0.0] * (len(BUCKETS) + 2))
            for number, most in enumerate(BUCKETS):
                times[number] += seconds <= most
            times[-2] += 1
            times[-1] += seconds

    def text(self, gauges: Iterable[tuple[str, str, str, float]]) -> str:
        """All metrics as text; `gauges` are further ones as (name, type, help, value)."""
        lines = ["# HELP gatf_requests_total Requests.", "# TYPE gatf_requests_total counter"]
        with self._lock:
            for (route, method, status), count in sorted(self._requests.items()):
                lines.append(f'gatf_requests_total{{route="{route}",method="{method}",status="{status}"}} {count}')
            lines += ["# HELP gatf_request_seconds Duration of requests.", "# TYPE gatf_request_seconds histogram"]
            for route, times in sorted(self._times.items()):
                for most, within in zip(BUCKETS, times, strict=False):
                    lines.append(f'gatf_request_seconds_bucket{{route="{route}",le="{most}"}} {within:.0f}')
                lines.append(f'gatf_request_seconds_bucket{{route="{route}",le="+Inf"}} {times[-2]:.0f}')
                lines.append(f'gatf_request_seconds_count{{route="{route}"}} {times[-2]:.0f}')
                lines.append(f'gatf_request_seconds_sum{{route="{route}"}} {times[-1]:.6f}')
        for name, kind, meaning, value in gauges:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"
