#!/usr/bin/env python3
"""Imitates torchrun (PyTorch 2) on one host, as the ranks see it: its environment variables, its store that listens on
MASTER_PORT, SIGTERM forwarded and sent to all ranks when one fails, SIGKILL 30 s later, status 1 for any failure.

    torchrun_stand_in.py --no-python --nproc-per-node N PROGRAM [ARGUMENT...]
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid


def variables(rank, size, port, run):
    return {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 1,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", 1),
    }


def terminate(processes):
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    end = time.monotonic() + 30
    for process in processes:
        try:
            process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def listen():
    """Listens on a port whose next one, which Furlong's store takes, is free, too. Both are below the kernel's
    ephemeral ports, which connections of other programs could take."""
    for port in random.sample(range(30002, 32767, 2), 1000):
        try:
            with socket.create_server(("127.0.0.1", port + 1)):
                return socket.create_server(("127.0.0.1", port))
        except OSError:
            continue
    sys.exit("no two free ports")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-python", action="store_true", required=True)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    store = listen()
    port, run = store.getsockname()[1], str(uuid.uuid4())
    processes = []
    for rank in range(arguments.nproc_per_node):
        own = {name: str(value) for name, value in variables(rank, arguments.nproc_per_node, port, run).items()}
        processes.append(subprocess.Popen(arguments.command, env={**os.environ, **own}, start_new_session=True))
    told = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: told.append(number))
    while not told:
        statuses = [process.poll() for process in processes]
        if any(statuses) or None not in statuses:
            break
        time.sleep(0.1)
    terminate(processes)
    sys.exit(1 if told or any(process.returncode for process in processes) else 0)


if __name__ == "__main__":
    main()
