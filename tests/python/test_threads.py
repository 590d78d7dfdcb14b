"""Calls are pure: threads get what one thread gets, and the GIL is free while a job is played."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import vramest


def test_threads_agree_with_one_thread(job: dict[str, Any]) -> None:
    variants = [{**job, "data": {"resolution": side}} for side in (256, 384, 512, 640)] * 4
    expected = [vramest.check(variant).to_json() for variant in variants]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda variant: vramest.check(variant).to_json(), variants)) == expected


def test_the_gil_is_free_meanwhile(job: dict[str, Any]) -> None:
    # Many buckets, so that one call lasts; another thread must get on during it.
    job["data"] = {"buckets": [[256 + 16 * i, 256] for i in range(60)]}
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    other = threading.Thread(target=tick)
    other.start()
    try:
        while len(ticks) < 3:
            time.sleep(0.001)
        begin = time.perf_counter()
        vramest.check(job)
        end = time.perf_counter()
    finally:
        done.set()
        other.join()
    within = [moment for moment in ticks if begin + 0.1 * (end - begin) < moment < end - 0.1 * (end - begin)]
    assert end - begin < 0.01 or within, f"no other thread ran during a call of {end - begin:.3f} s"
