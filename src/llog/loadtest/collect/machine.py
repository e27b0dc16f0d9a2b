"""What the operating system counts: each process of the run with its children, and the host.

A process is known by pid and start time, so a later process with its pid is not taken for it. The processor time of
children counts with their parent: of those that live, and of those that ended and were waited for. All parents are read
in one pass, because asking each process for its children would read the whole process table every time.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import psutil

from llog.loadtest.artifacts import HostSample, ProcessPlace, ProcessSample

START_TIME_TOLERANCE_S: Final = 0.5

Children = Mapping[int, Sequence[psutil.Process]]


def sample_processes(places: Iterable[ProcessPlace]) -> tuple[ProcessSample, ...]:
    children = _children()
    return tuple(_sample(place, children) for place in places)


def _children() -> Children:
    by_parent: dict[int, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter(["ppid"]):
        by_parent[process.info["ppid"]].append(process)
    return by_parent


def _sample(place: ProcessPlace, children: Children) -> ProcessSample:
    gone = ProcessSample(place.name, place.kind, False, started_s=place.started_s)
    try:
        process = psutil.Process(place.pid)
        if abs(process.create_time() - place.started_s) > START_TIME_TOLERANCE_S:
            return gone
        if process.status() == psutil.STATUS_ZOMBIE:
            return gone
        own = _counted(process)
    except psutil.NoSuchProcess:
        return gone
    counted = [own]
    for child in _descendants(process.pid, children):
        try:
            counted.append(_counted(child))
        except psutil.NoSuchProcess:  # ended meanwhile; its time is its parent's from now on
            continue
    cpu_s, *others = (sum(column) for column in zip(*counted, strict=True))
    rss_bytes, threads, descriptors, read_bytes, written_bytes = map(int, others)
    return ProcessSample(
        place.name,
        place.kind,
        True,
        cpu_s,
        rss_bytes,
        threads,
        descriptors,
        read_bytes,
        written_bytes,
        place.started_s,
    )


def _descendants(pid: int, children: Children) -> Iterator[psutil.Process]:
    for child in children.get(pid, ()):
        yield child
        yield from _descendants(child.pid, children)


def _counted(process: psutil.Process) -> tuple[float, int, int, int, int, int]:
    """Processor time, memory, threads, descriptors, bytes read and written. A figure that this user may not read, of a
    process of another user, is 0."""
    with process.oneshot():
        times = process.cpu_times()
        cpu_s = times.user + times.system + getattr(times, "children_user", 0) + getattr(times, "children_system", 0)
        rss_bytes, threads = process.memory_info().rss, process.num_threads()
        try:
            descriptors, counters = process.num_fds(), process.io_counters()
        except (psutil.AccessDenied, AttributeError, NotImplementedError):
            return cpu_s, rss_bytes, threads, 0, 0, 0
    return cpu_s, rss_bytes, threads, descriptors, counters.read_bytes, counters.write_bytes


def sample_host() -> HostSample:
    times, disk, net = psutil.cpu_times(), psutil.disk_io_counters(), psutil.net_io_counters()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # The time of guests is part of the time of users.
    counted = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return HostSample(
        cpu_count=psutil.cpu_count() or 0,
        cpu_busy_s=counted - idle,
        cpu_steal_s=getattr(times, "steal", 0.0),
        load_1m=os.getloadavg()[0],
        memory_available_bytes=psutil.virtual_memory().available,
        disk_read_bytes=0 if disk is None else disk.read_bytes,
        disk_written_bytes=0 if disk is None else disk.write_bytes,
        net_sent_bytes=0 if net is None else net.bytes_sent,
        net_received_bytes=0 if net is None else net.bytes_recv,
    )
