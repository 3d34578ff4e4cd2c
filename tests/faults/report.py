"""The report of a run, and the promises that it found broken."""
import time

FAILED = []


def say(name, **counts):
    print(f"{name}: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in counts.items()), flush=True)


def must(condition, what):
    if not condition:
        FAILED.append(what)
        print(f"  NOT KEPT: {what}", flush=True)


def until(what, condition, seconds=90):
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.05)
    must(False, f"in time: {what}")
    return False
