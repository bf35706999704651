"""Figures of several measurements of one case, for run.py. Needs no PyTorch."""

import statistics


def joined(turns):
    """One result of several measurements of the same case: that of all their repetitions."""
    seconds = [second for turn in turns for second in turn["seconds"]]
    result = {**turns[0], "seconds": seconds, "median_seconds": statistics.median(seconds)}
    result["flops_per_second"] = result["flops"] / result["median_seconds"]
    # Of the turns' peaks the highest; unknown if a turn's is.
    if all(turn["fraction_of_peak"] for turn in turns):
        peak = max(turn["flops_per_second"] / turn["fraction_of_peak"] for turn in turns)
        result["fraction_of_peak"] = result["flops_per_second"] / peak
    else:
        result["fraction_of_peak"] = None
    result["peak_bytes"] = max(turn["peak_bytes"] for turn in turns)
    return result


def self_test():
    turn = {"flops": 6.0, "median_seconds": 2.0, "flops_per_second": 3.0, "fraction_of_peak": 0.5, "peak_bytes": 1}
    slow = {**turn, "median_seconds": 4.0, "flops_per_second": 1.5, "fraction_of_peak": 0.25, "peak_bytes": 2}
    found = joined([{**turn, "seconds": [1.0, 2.0, 9.0]}, {**slow, "seconds": [3.0, 4.0, 5.0]}])
    assert found["median_seconds"] == 3.5 and len(found["seconds"]) == 6 and found["peak_bytes"] == 2
    assert abs(found["fraction_of_peak"] - 6 / 3.5 / 6) < 1e-12
